"""The health of a cluster, on asyncio.

checks.py                              the part `Admin.health`: collects the state and has it judged
apache_report.py                       backlogs and dead letters of Apache's brokers
stuck_members.py                       names the members that hold messages and commit nothing
state.py                               the answers, before they are judged
findings.py, consumption_findings.py   judge them; they ask no server
results.py                             what a check returns
support_documents.py, redaction.py     the state as documents for a support bundle, without secrets

A check sends each server a bounded number of requests; a test counts them. `metaq cluster status`,
`metaq doctor` and the support bundle call it.
"""
