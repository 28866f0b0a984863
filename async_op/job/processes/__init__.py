"""A job on several processes: the parent reads, routes and commits; its children run the subtasks of all steps.

The protocol has one star. Each child has a contiguous run of the subtasks of every step on one event loop, and one
connection to the parent; children do not talk to each other.

- **Elements.** The parent sends what it reads to the child of the subtask that owns the key. An output stays in its
  child, or goes to another one through the parent, which passes the bytes on and decodes nothing. All that is sent is
  in one order for each connection, so the order in a channel is kept.
- **Credits.** A sender to a subtask counts what its inlet has not let in yet, and stops taking in elements at the
  inlet's limit. The receiver returns the credit when the operator has taken the elements.
- **Cut.** In one turn of its loop the parent cuts the positions of the source and sends a *cut* to every child. A child
  cuts its subtasks in the turn in which it hears of it, goes on, and answers with a *mark*. What it had sent before its
  mark, and the parent passes on behind the receiver's cut, is channel state: the parent flags it *late*, and the
  receiver adds it to its part as well as to its inlet. No barrier is aligned, and no call waits. Once the parent has
  all marks, the children write their parts, and the parent commits them.
- **Outputs** stay in the child until its cut. The child stores them with its parts, and sends them to the parent, which
  gives them to the sink after the commit.
- **Failures.** What fails in a child fails the run, as in one process. A child that dies fails it, too: nothing that
  came from it since the newest snapshot counts. A child ends when its parent does.
"""
