"""The log of a gateway that is the child of a server: each record is one line of JSON, which the server logs again."""

from __future__ import annotations

import json
import logging


class LineFormatter(logging.Formatter):
    """Formats a log record for the server. A line break in a message does not begin another line."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line: the message with its traceback, and the attribute `fields` of the record."""
        message = record.getMessage()
        if record.exc_info:
            message += f"\n{self.formatException(record.exc_info)}"
        fields = getattr(record, "fields", {})
        return json.dumps({"level": record.levelno, "logger": record.name, "message": message, "fields": fields})
