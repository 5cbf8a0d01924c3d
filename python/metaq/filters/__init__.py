"""Filter functions: Python functions that decide at the broker which messages a consumer gets.

    from metaq.filters import FilterMessage, function

    @function
    def larger_than(message: FilterMessage, size: int) -> bool:
        \"\"\"Messages whose body has more than `size` bytes.\"\"\"
        return len(message.body) > size

An operator lists the folder of the file, or a module, in the setting `filter_functions`. A consumer
subscribes with `larger_than(1000)`. See docs/filters.md.

declared.py  finds the functions and describes them
message.py   the message that a function gets
exchange.py  what broker and worker send to each other
worker.py    the process that runs the functions; broker/functions/ starts it

Authors of filter functions use only the names below. The broker and its workers use the rest.
"""

from __future__ import annotations

from metaq.filters.declared import FunctionError, function
from metaq.filters.message import FilterMessage

__all__ = ["FilterMessage", "FunctionError", "function"]
