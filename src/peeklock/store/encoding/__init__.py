"""Facts as bytes: frames, body rows, event rows, definitions.

body_rows    How the payloads of a body row become one BLOB, and how a BLOB becomes payloads again.
chain        That frames follow one another: none is missing between two, and none was replaced.
cursors      Cursors and their claims as JSON texts.
definitions  What is kept apart from the journal: entities, their rules, cursors with their claims, and the
             next free
entities     Entity definitions as JSON texts: few, read by people too, and open to fields of later releases'
             formats.
event_rows   How the events of one batch become a BLOB, and how a BLOB becomes events again.
fold         Replaying a journal without making objects for records that do not last.
frames       How the facts of one batch become one BLOB, a frame, and how frames become facts again.
rules        Rules of subscriptions as JSON texts.
"""
