"""Guards of what people see: text that cannot control a terminal, and holds no password."""

from __future__ import annotations

from tests.guards.guard import Guard

_HOSTILE = "tests/unit/test_text_hostile.py"
_LOOK = "tests/unit/cli/test_runs_and_status.py"
_PLAIN = "tests/unit/test_text.py"
_SECRETS = "tests/unit/test_opening_secrets.py"

_LASTING = "tests/unit/model/test_lasting.py"
_WHERE = "tests/unit/worker/test_reports.py"

SHOWN_GUARDS = (
    Guard(
        name="where: a library's frame is not the user's",
        before="(_is_users, _is_not_ours, bool)",
        after="(bool,)",
        test=f"{_WHERE} -k own_line",
    ),
    Guard(
        name="where: a long traceback is cut",
        before="    if left_out > 0:\n",
        after="    if False:\n",
        test=f"{_WHERE} -k cut",
    ),
    Guard(
        name="where: no secret of a line of source is shown or stored",
        before="    return _LITERAL.sub(",
        after="    return text or _LITERAL.sub(",
        test=f"{_WHERE} -k secret",
    ),
    Guard(
        name="stop: the record has the error's message",
        before=", message=error.summary)",
        after=")",
        test=f"{_WHERE} -k ledger",
    ),
    Guard(
        name="retry_safe: a mistake in the transform is not worth a retry",
        before='retry_safe=not first.facts.get("lasts"),',
        after="retry_safe=True,",
        test=f"{_LASTING} -k mistake",
    ),
    Guard(
        name="retry_safe: an error that a passing one led to may pass",
        before="    if any(names(PASSING, cause) for cause in error_chain(error)):\n",
        after="    if False:\n",
        test=f"{_LASTING} -k may_pass",
    ),
    Guard(
        name="retry_safe: a store that refuses is told from one that is away",
        before="retry_safe=refusal is None or not refusal.lasts,",
        after="retry_safe=True,",
        test=f"{_LASTING} -k answer_of_a_store",
    ),
    Guard(
        name="retry_safe: a query that Spark refuses stays wrong",
        before="    if isinstance(error, _REFUSED_QUERIES):\n",
        after="    if False:\n",
        test=f"{_LASTING} -k spark",
    ),
    Guard(
        name="retry_safe: an error of a task speaks for itself",
        before='        return "no" in own\n',
        after="        pass\n",
        test=f"{_LASTING} -k spark",
    ),
    Guard(
        name="a command takes no text for markup",
        before="markup=False, emoji=False,",
        after="markup=True, emoji=False,",
        test=_HOSTILE,
    ),
    Guard(
        name="a command takes no text for the name of a picture",
        before="markup=False, emoji=False,",
        after="markup=False, emoji=True,",
        test=_HOSTILE,
    ),
    Guard(
        name="a command spells control characters",
        before="super().render_str(printable(text), **options)",
        after="super().render_str(text, **options)",
        test=_HOSTILE,
    ),
    Guard(
        name="a text in colours is spelled too",
        before="renderable = renderable.blank_copy(printable(renderable.plain))",
        after="pass",
        test=_HOSTILE,
    ),
    Guard(
        name="a line of a command is one line",
        before="print(printable(text), flush=True)",
        after="print(text, flush=True)",
        test=_HOSTILE,
    ),
    Guard(
        name="JSON holds no control character",
        before="json.dumps(document, indent=indent)",
        after="json.dumps(document, indent=indent, ensure_ascii=False)",
        test=_HOSTILE,
    ),
    Guard(
        name="a complaint about usage is safe",
        before="super().error(printable(without_passwords(message)))",
        after="super().error(message)",
        test=_HOSTILE,
    ),
    Guard(
        name="an error's facts act on no terminal",
        before='"\\n    ".join(printable(line) for line in without_passwords(text).splitlines())',
        after='"\\n    ".join(without_passwords(text).splitlines())',
        test=_HOSTILE,
    ),
    Guard(
        name="an error's facts cannot pass for its parts",
        before='return "\\n    ".join(',
        after='return "\\n".join(',
        test=_HOSTILE,
    ),
    Guard(
        name="an error's facts lose their passwords",
        before="without_passwords(text).splitlines()",
        after="text.splitlines()",
        test=_SECRETS,
    ),
    Guard(
        name="a step is one line of the log",
        before='"run %s: %s", printable(run_id), line',
        after='"run %s: %s", run_id, line',
        test=_HOSTILE,
    ),
    Guard(
        name="a line of progress is one line",
        before="self._write(printable(line))",
        after="self._write(line)",
        test=_HOSTILE,
    ),
    Guard(
        name="the picture of a run spells its id",
        before="Text(printable(self._frame.run_id)",
        after="Text(self._frame.run_id",
        test=_HOSTILE,
    ),
    Guard(
        name="the picture of a run spells its reason",
        before="Text(printable(value)",
        after="Text(value",
        test=_HOSTILE,
    ),
    Guard(
        name="a page spells every text",
        before="    facts = _printable(facts)\n",
        after="",
        test=_HOSTILE,
    ),
    Guard(
        name="a storage error loses the password of the endpoint",
        before="return without_passwords(said)",
        after="return said",
        test=_SECRETS,
    ),
    Guard(
        name="a location with a password is refused",
        before="    if has_password(uri):\n",
        after="    if False:\n",
        test=_SECRETS,
    ),
    Guard(
        name="a debugger sees no storage option",
        before="return f\"Options({', '.join(name for name, _ in self)})\"",
        after="return super().__repr__()",
        test=_SECRETS,
    ),
    Guard(
        name="a cause that holds a secret is left out",
        before="error if is_clean else None",
        after="error",
        test=_SECRETS,
    ),
    Guard(
        name="a secret that was given is cut out of an error",
        before="        text = text.replace(secret, CUT)\n",
        after="        pass\n",
        test=_PLAIN,
    ),
    Guard(
        name="a password with slashes is cut out",
        before=r"|(?!\d{1,5}/)[^\s]{1,1024})",
        after=")",
        test=_PLAIN,
    ),
    Guard(
        name="a folder that is no run hides none",
        before="    if not is_run_folder(folder):\n",
        after="    if False:\n",
        test=_LOOK,
    ),
    Guard(
        name="a run that the store does not answer for hides none",
        before="    except StoreUnavailableError as error:\n        return Line",
        after="    except ZeroDivisionError as error:\n        return Line",
        test=_LOOK,
    ),
    Guard(
        name="a record that no check refuses hides no run",
        before="    except Exception as error:  # noqa: BLE001 - of a record",
        after="    except ZeroDivisionError as error:  # noqa: BLE001 - of a record",
        test=_LOOK,
    ),
    Guard(
        name="a list in Python goes on after damage",
        before="    except LedgerDamagedError as error:\n        return RunStatus",
        after="    except ZeroDivisionError as error:\n        return RunStatus",
        test=_LOOK,
    ),
    Guard(
        name="an option without its name is not repeated",
        before="{flag} number {number} is no",
        after="{flag} number {number} {pair} is no",
        test="tests/unit/cli/test_main.py -k name_and_a_value",
    ),
    Guard(
        name="a value may be in a file, so that no list of processes shows it",
        before="    if given.startswith(_FROM_FILE):\n",
        after="    if False:\n",
        test="tests/unit/cli/test_main.py -k value",
    ),
)
