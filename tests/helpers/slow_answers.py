"""Answers of the app that take their time; in a module that a new process can import."""

import os
import time


class SlowAnswers:
    gallery = None

    def wait(self, seconds):
        time.sleep(seconds)
        return os.getpid()

    def fail(self):
        raise ZeroDivisionError

    def end(self):
        os._exit(1)
