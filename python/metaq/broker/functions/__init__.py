"""Filter functions on the broker's side; what a function itself sees is `metaq.filters`.

Reading order: `call` reads what a consumer writes, `process` is one worker, `pool` brings the batches of one
function to its workers, `functions` has them all.
"""

from __future__ import annotations

from metaq.broker.functions.call import Call, check_call, parse_call
from metaq.broker.functions.functions import Functions
from metaq.broker.functions.process import WorkerSettings, describe_functions

__all__ = ["Call", "Functions", "WorkerSettings", "check_call", "describe_functions", "parse_call"]
