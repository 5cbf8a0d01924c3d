"""The changes that people make through the console, one class per action.

An action is chosen, previewed and applied. The preview has the effect, row by row, and the `metaq` command
that does the same. To apply it, the preview is computed again: if the facts that it rests on have changed,
nothing is applied and the new preview is shown. Every attempt is in the audit log.

action.py   `Action`, `Preview` and `Outcome`
routes.py   the three addresses of an action: its form, its preview, its application
table.py    all actions by their names

The other modules have the actions themselves, by subject.
"""
