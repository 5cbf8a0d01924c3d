"""Access to the console: who may see and do what.

roles.py       viewer and operator, the identity of a request, and `require`
links.py       one-time links, which `metaq serve` and `metaq console link` print
sessions.py    people who are signed in
passwords.py   sign-in by password, and the brake on guesses
access.py      all of these, as one object that pages and middleware share
hosts.py       the Host and Origin headers that are accepted
body.py        limits of a request's body
cookies.py     the cookies that are read
log_brake.py   a limit on lines in the log that anybody can cause
middleware.py  checks every request before a page sees it
sign_in.py     the pages /login and /logout

Users and roles of a cluster come in through `Directory`: an implementation that asks a broker can take the
place of `PasswordDirectory`.

`metaq serve` uses roles.py and links.py without the console's libraries, so these load none of them.
"""
