"""binlog-mirror: the topic of binlog-sync into tables that are as its source's, in Delta or a database.

Why the order between queues does not matter. A mirror table is a function of two things that only grow: for
every key the change with the largest number, and for the table a *floor*, below which nothing counts. A row
is there if its largest change is no delete and not below the floor. Both are maxima, so changes and barriers
may come in any order and any number of times, and the result is the same.

A batch may have seen a TRUNCATE in one queue and not yet in another. The floor counts at once for all of
them: the table's rows with smaller numbers go, in whichever queue they came. What another queue still brings
from before the statement has a smaller number and is dropped; what a queue has brought from after it has a
larger number and stays; the same statement from the next queue changes nothing. What was deleted before the
floor needs no tombstone any more, because the floor itself keeps it away.

Only the end of a snapshot waits for every queue. Its floor says that what was not read is not there any more,
and a row that was read may be on its way in a queue that has not come so far. To set it early would be right
in the end as well, but rows would be gone for a while that are there.

Definitions grow too: a mirror has the columns of the newest one that any queue has told of. Rows of an older
one, from a queue that is behind, are brought to these columns.

What is seen between two batches is thus no moment of the source: queues are not equally far. It is one when
all of them have come to the same barrier, or to the end.
"""
