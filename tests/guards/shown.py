"""Guards of what people see: text that acts on no terminal, and no password in it."""

from __future__ import annotations

from tests.guards.guard import Guard

_HOSTILE = "tests/unit/test_hostile_text.py"
_LOOK = "tests/unit/test_cli_look.py"
_PLAIN = "tests/unit/test_plain_text.py"
_SECRETS = "tests/unit/test_secrets.py"

_LASTING = "tests/unit/test_lasting.py"

SHOWN_GUARDS = (
    Guard(
        name="retry_safe: a mistake in the transform is not worth a retry",
        file="engine/problems.py",
        before='retry_safe=not first.facts.get("lasts"),',
        after="retry_safe=True,",
        test=f"{_LASTING} -k mistake",
    ),
    Guard(
        name="retry_safe: an error that a passing one led to may pass",
        file="model/lasting.py",
        before="    if any(names(PASSING, one) for one in _behind(error, handled=True)):\n",
        after="    if False:\n",
        test=f"{_LASTING} -k may_pass",
    ),
    Guard(
        name="retry_safe: a store that refuses is told from one that is away",
        file="ledger/create_once.py",
        before="retry_safe=refusal is None or not refusal.lasts,",
        after="retry_safe=True,",
        test=f"{_LASTING} -k answer_of_a_store",
    ),
    Guard(
        name="retry_safe: a query that Spark refuses stays wrong",
        file="spark/jobs.py",
        before="    if isinstance(error, _REFUSED_QUERIES):\n",
        after="    if False:\n",
        test=f"{_LASTING} -k spark",
    ),
    Guard(
        name="retry_safe: an error of a task speaks for itself",
        file="spark/jobs.py",
        before='        return "no" in own\n',
        after="        pass\n",
        test=f"{_LASTING} -k spark",
    ),
    Guard(
        name="a command takes no text for markup",
        file="cli/console.py",
        before="markup=False, emoji=False,",
        after="markup=True, emoji=False,",
        test=_HOSTILE,
    ),
    Guard(
        name="a command takes no text for the name of a picture",
        file="cli/console.py",
        before="markup=False, emoji=False,",
        after="markup=False, emoji=True,",
        test=_HOSTILE,
    ),
    Guard(
        name="a command spells control characters",
        file="cli/console.py",
        before="super().render_str(printable(text), **options)",
        after="super().render_str(text, **options)",
        test=_HOSTILE,
    ),
    Guard(
        name="a text in colours is spelled too",
        file="cli/console.py",
        before="renderable = renderable.blank_copy(printable(renderable.plain))",
        after="pass",
        test=_HOSTILE,
    ),
    Guard(
        name="a line of a command is one line",
        file="cli/plain.py",
        before="print(printable(text), flush=True)",
        after="print(text, flush=True)",
        test=_HOSTILE,
    ),
    Guard(
        name="JSON holds no control character",
        file="cli/plain.py",
        before="json.dumps(document, indent=indent)",
        after="json.dumps(document, indent=indent, ensure_ascii=False)",
        test=_HOSTILE,
    ),
    Guard(
        name="a complaint about usage is safe",
        file="cli/plain.py",
        before="super().error(printable(without_passwords(message)))",
        after="super().error(message)",
        test=_HOSTILE,
    ),
    Guard(
        name="an error's facts act on no terminal",
        file="_error_root.py",
        before='"\\n    ".join(printable(line) for line in without_passwords(text).splitlines())',
        after='"\\n    ".join(without_passwords(text).splitlines())',
        test=_HOSTILE,
    ),
    Guard(
        name="an error's facts cannot pass for its parts",
        file="_error_root.py",
        before='return "\\n    ".join(',
        after='return "\\n".join(',
        test=_HOSTILE,
    ),
    Guard(
        name="an error's facts lose their passwords",
        file="_error_root.py",
        before="without_passwords(text).splitlines()",
        after="text.splitlines()",
        test=_SECRETS,
    ),
    Guard(
        name="a step is one line of the log",
        file="engine/steps_log.py",
        before='"run %s: %s", printable(run_id), told',
        after='"run %s: %s", run_id, told',
        test=_HOSTILE,
    ),
    Guard(
        name="a line of progress is one line",
        file="progress/display.py",
        before="self._write(printable(line))",
        after="self._write(line)",
        test=_HOSTILE,
    ),
    Guard(
        name="the picture of a run spells its id",
        file="progress/terminal.py",
        before="Text(printable(self._frame.run_id)",
        after="Text(self._frame.run_id",
        test=_HOSTILE,
    ),
    Guard(
        name="the picture of a run spells its reason",
        file="progress/terminal.py",
        before="Text(printable(value)",
        after="Text(value",
        test=_HOSTILE,
    ),
    Guard(
        name="a page spells every text",
        file="pages/page.py",
        before="    facts = _printable(facts)\n",
        after="",
        test=_HOSTILE,
    ),
    Guard(
        name="a storage error loses the password of the endpoint",
        file="storage/calls.py",
        before="return without_passwords(said)",
        after="return said",
        test=_SECRETS,
    ),
    Guard(
        name="a location with a password is refused",
        file="storage/locations.py",
        before="    if has_password(uri):\n",
        after="    if False:\n",
        test=_SECRETS,
    ),
    Guard(
        name="a debugger sees no storage option",
        file="storage/locations.py",
        before="return f\"Options({', '.join(name for name, _ in self)})\"",
        after="return super().__repr__()",
        test=_SECRETS,
    ),
    Guard(
        name="a cause that holds a secret is left out",
        file="plain_text.py",
        before="error if is_clean else None",
        after="error",
        test=_SECRETS,
    ),
    Guard(
        name="a secret that was given is cut out of an error",
        file="plain_text.py",
        before="        text = text.replace(secret, CUT)\n",
        after="        pass\n",
        test=_PLAIN,
    ),
    Guard(
        name="a password with slashes is cut out",
        file="plain_text.py",
        before=r"|(?!\d{1,5}/)[^\s]{1,1024})",
        after=")",
        test=_PLAIN,
    ),
    Guard(
        name="a folder that is no run hides none",
        file="cli/runs.py",
        before="    if not is_run_folder(folder):\n",
        after="    if False:\n",
        test=_LOOK,
    ),
    Guard(
        name="a run that the store does not answer for hides none",
        file="cli/runs.py",
        before="    except StoreUnavailableError as error:\n",
        after="    except ZeroDivisionError as error:\n",
        test=_LOOK,
    ),
    Guard(
        name="a record that no check refuses hides no run",
        file="cli/runs.py",
        before="    except Exception as error:",
        after="    except ZeroDivisionError as error:",
        test=_LOOK,
    ),
    Guard(
        name="a list in Python goes on after damage",
        file="run.py",
        before="    except LedgerDamagedError as error:\n",
        after="    except ZeroDivisionError as error:\n",
        test=_LOOK,
    ),
    Guard(
        name="an option without its name is not repeated",
        file="cli/ledgers.py",
        before="{flag} number {number} is no",
        after="{flag} number {number} {pair} is no",
        test="tests/unit/test_cli_frame.py -k name_and_a_value",
    ),
    Guard(
        name="a value may be in a file, so that no list of processes shows it",
        file="cli/ledgers.py",
        before="    if given.startswith(_FROM_FILE):\n",
        after="    if False:\n",
        test="tests/unit/test_cli_frame.py -k value",
    ),
)
