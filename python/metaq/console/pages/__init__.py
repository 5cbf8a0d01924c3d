"""The pages of the console, one module per page. Each has `ROUTES`, its addresses; `table.py` lists all."""
