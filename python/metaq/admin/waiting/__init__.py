"""Messages that no consumer gets yet.

delayed.py       `delayed`: messages that wait for their time; due_buckets.py joins the histograms of brokers
transactions.py  `transactions`: half messages that wait for their producer's decision
sync.py          both for plain code; results.py has their results, offset_ids.py checks arguments

Only MetaQ's brokers answer these requests (`metaq.protocol.commands.waiting`). The results of Apache's
brokers are a sentence in `missing`.
"""
