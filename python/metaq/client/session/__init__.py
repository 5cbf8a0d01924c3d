"""The session of a client: everything that its producers and consumers share.

session.py        connections to brokers, membership of groups, heartbeats, requests from brokers
routes.py         the brokers and queues of each topic, cached and refreshed
broker_watch.py   brokers that no route shows: all masters, and brokers that may return
broker_faults.py  brokers that failed recently

Producers, consumers, telemetry and the Spark connector call `Session`. It knows nothing about them: they
register callbacks for requests, for changed routes and for the end of the session. No user code may run here,
so that a slow handler never delays a heartbeat.
"""
