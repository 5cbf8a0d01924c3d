"""Filter functions: Python that decides on the broker which messages a consumer gets.

    from metaq.filters import FilterMessage, function

    @function
    def larger_than(message: FilterMessage, size: int) -> bool:
        \"\"\"Messages whose body has more than `size` bytes.\"\"\"
        return len(message.body) > size

An operator names the file's folder, or a module, in `filter_functions`; a consumer subscribes with
`larger_than(1000)`. docs/filters.md tells the whole of it.
"""

from __future__ import annotations

from metaq.filters.declared import FunctionError, function
from metaq.filters.message import FilterMessage

__all__ = ["FilterMessage", "FunctionError", "function"]
