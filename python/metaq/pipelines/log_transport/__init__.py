"""log-transport sends lines of log files, or of standard input, to a topic. log-lake stores them in a table.

- `pipeline.py` plans and runs it.
- `agent.py` finds files, reads them in turn and sends their lines; `followed.py` is one file that it follows,
  `positions.py` keeps how far each file was sent, `delay_warnings.py` decides when to warn about a delay.
- `found_files.py` finds files, `gaps.py` finds lines that were missed while no agent ran.
- `standard_input.py` sends a stream that can be read only once.
- `line_properties.py` defines the properties of a line's message.

Every line is sent at least once. Its file id and position reveal a duplicate.
"""
