"""The console: a cluster in the browser, for people who run it.

It is a web application of its own process. It asks the cluster only through `metaq.admin`, so it works on
MetaQ's clusters and on Apache's, and what a page shows is what the command line prints.

settings.py  its settings
console.py   `Console`: everything that a page needs
app.py       the addresses, and the answers to errors
access/      who may see and who may change: links, sessions, roles, headers
audit_log.py who did what through the console
live/        the polls of the cluster, the newest figures and their history
pages/       one module per page
actions/     changes: each shows its command, previews its effect and applies exactly that
rendering.py templates, words in two languages, numbers for people
text/        every word that a page shows, in English and Chinese
templates/   the pages in Jinja's language
static/      style, scripts and the two libraries that come with us
web_server.py  HTTP: limits, time-outs, TLS, and an end that does not wait for open pages
listener.py  the socket that a console listens on
run.py       runs a console on a socket until it is stopped
place.py     the state folder of a console that runs: its address for `metaq console link`, its first links
foreground.py  `metaq console`: the console of any cluster
process.py   the console of `metaq serve`: its socket and its child process
child.py     the program that the child process runs

Users read docs/console.md.
"""
