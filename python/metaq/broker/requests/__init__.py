"""Handlers for the requests that the data plane does not answer itself.

One module for each subject; one method with `@handles` for each command, beside the state that it touches.
`handlers` puts all of them together for a master. A handler returns a response or raises `Refused`, and is
`async` if it waits for anything. Work on the store goes to a thread, because the event loop must not wait for
the disk.

`metaq.protocol.handling.pump` calls the handlers. They use `state`, and never each other.
"""
