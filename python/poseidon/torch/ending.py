"""How a script ends: well, then the job is done; by an exception, then the others are told; by Ctrl-C, then it leaves.

Called by: distribute.py. Calls: session.py.
"""

import os
import sys
import traceback


class End:
    """How this script ends, which the interpreter does not tell functions that run at its exit."""

    failure = None      # what the last line of its traceback says; None: it ends well
    interrupted = False

    def watch(self):
        show, leave = sys.excepthook, sys.exit

        def hook(kind, value, trace):
            self.failure = traceback.format_exception_only(kind, value)[-1].strip()
            self.interrupted = issubclass(kind, KeyboardInterrupt)
            show(kind, value, trace)

        def exit_with(status=None):
            self.failure = None if status is None or status == 0 else f"sys.exit({status!r})"
            leave(status)
        sys.excepthook, sys.exit = hook, exit_with


of_script = End()
of_script.watch()


def at_exit(session, on_error):
    """A script that ends well is done."""
    if not session.open or os.getpid() != session.pid:
        return
    if of_script.failure is None:
        session.finish()
    elif on_error == "end" and not of_script.interrupted:
        session.fail(of_script.failure)
    else:
        session.close()
