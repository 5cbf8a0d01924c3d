"""State that is written in proportion to its changes, off the event loop, and many changes with one sync.

- `journal`: keys and values of several tables; a change writes itself and nothing else
- `files`: the layout of the files, and what is damage and what is not
- `mark`: what the journal must at least hold, kept beside it
- `set_aside`: the entries that cannot be applied, for the operator
- `file_journal`: a journal in the place of a small file that was replaced as a whole

The control state of a broker is a journal, and so are the values of a name server and the offsets of a
broadcast consumer. docs/decisions/0004 says why. Nothing here knows what the keys mean.
"""

from metaq.journal.file_journal import FileJournal
from metaq.journal.files import Entry, JournalDamaged, NotWritten, Point
from metaq.journal.journal import Change, Journal, Observer, Snapshot, Unwritten

__all__ = [
    "Change",
    "Entry",
    "FileJournal",
    "Journal",
    "JournalDamaged",
    "NotWritten",
    "Observer",
    "Point",
    "Snapshot",
    "Unwritten",
]
