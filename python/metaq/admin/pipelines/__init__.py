"""`pipelines`: the reports that pipelines and Spark queries send while they run.

reports.py        the report, and its JSON in a message
report_topic.py   `pipelines` itself: reads the reports of a cluster, and sends one
report_sender.py  sends the reports of a process in a thread, so that a report never holds up its work

Reports are messages of the topic `PIPELINE_REPORTS_TOPIC` (`metaq/protocol/names.py`). `metaq pipeline run`
sends them (`metaq/pipelines/run_reports.py`), and so does `metaq.spark.report_queries`.
"""
