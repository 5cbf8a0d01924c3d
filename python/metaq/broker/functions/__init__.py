"""Filter functions on the broker's side; `metaq.filters` is the side that a function itself sees.

Reading order: `call` reads the text that a consumer writes, `process` is one worker process, `pool` brings
the batches of one function to its workers, `functions` has all of them, `tally` counts and logs.

The operator's code runs in worker processes only, never in the broker: keep it so. The data plane hands
batches out (`BrokerPlane.take_batch`), and every batch must be answered or refused, or its pull hangs.
`metaq.broker.master` starts and stops the pools; the descriptions of the functions are loaded once per
process.
"""

from __future__ import annotations

from metaq.broker.functions.call import Call, check_call, parse_call
from metaq.broker.functions.functions import Functions
from metaq.broker.functions.process import WorkerSettings, describe_functions

__all__ = ["Call", "Functions", "WorkerSettings", "check_call", "describe_functions", "parse_call"]
