"""Log messages as JSON objects, one a line, with the ids of the call that they belong to."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

from streaming_server.current_call import CURRENT_CALL

# The attributes of every record. The others come from `extra`.
_USUAL: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON.

    The fields are `time` (UTC), `level`, `logger` and `message`; `request_id`, `method`, `scan_id`, `trace_id` and
    `span_id` if the record belongs to a call that has them; `exception` with the traceback if it has one; and
    everything that is given as `extra`.

    Args:
        **of_process: Fields of every line.
    """

    def __init__(self, **of_process: object) -> None:
        super().__init__()
        self._of_process = of_process

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._of_process,
        }
        if (call := CURRENT_CALL.get()) is not None:
            fields |= {"request_id": call.request_id, "method": call.method}
            if call.scan_id:
                fields["scan_id"] = call.scan_id
            if call.trace_id:
                fields |= {"trace_id": call.trace_id, "span_id": call.span_id}
        fields |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)
