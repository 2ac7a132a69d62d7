"""Every command: where it is written, what it does, and an example. Plain data, so that a look at it costs nothing.

A command `send` in module `mail` is the pair of functions `send_options(parser)` and `send(call) -> exit code`.
"""

from __future__ import annotations

from typing import Final


class Command:
    """One command of the command line.

    `function` is its name in the module, where the command's own name is a word of Python. `quotes` are those of its actions
    whose text holds what other agents wrote, so that it is fenced in a pipe; () is all of them, None is none.
    """

    def __init__(
        self, module: str, summary: str, *examples: str, function: str = "", quotes: tuple[str, ...] | None = None
    ) -> None:
        self.module, self.summary, self.examples = module, summary, examples
        self.function, self.quotes = function, quotes


COMMANDS: Final = {
    "top": Command(
        "top",
        "watch the room live",
        "postroom top",
        "postroom top --once",
        "postroom top --json --interval 5",
        quotes=(),
    ),
    "web": Command(
        "web",
        "show the room in the browser",
        "postroom web",
        "postroom web --port 8080 --no-open --as mia",
        "postroom web --no-open --token-file ~/.config/postroom-web.token",
        "postroom web --no-open --json",
    ),
    "doctor": Command(
        "doctor", "check the machine and the room, and suggest fixes", "postroom doctor", "postroom doctor --json"
    ),
    "init": Command(
        "rooms",
        "make a room in this folder",
        "postroom init",
        "postroom init --room sqlite:/srv/mail",
        "postroom init --anew",
        "postroom init --layout windsurf --workers 3 --worktrees --dry-run",
    ),
    "allow": Command(
        "allow",
        "trust a room that you did not make here, or a server",
        "postroom allow",
        "postroom allow ~/src/project",
        "postroom allow nats://nats.example:4222/team --user ada --password-file ~/.nats-password",
        "postroom allow --list",
    ),
    "status": Command("look", "show the room at a glance", "postroom status", quotes=()),
    "agents": Command("look", "list the agents and their status", "postroom agents --json", quotes=()),
    "mailboxes": Command("look", "show how much mail waits, and for whom", "postroom mailboxes", quotes=()),
    "send": Command(
        "mail",
        "send a message to an agent",
        "postroom send bob 'the build is green' --as ada",
        """postroom send bob '{"pr": 7}' --as ada --type review --wait acked --timeout 60""",
        """postroom send '*' '{"pr": 7}' --channel reviews --as ada""",
        "postroom send bob 'lunch?' --to cleo --to dan --as ada --new",
        """postroom send '*' '{"pr": 7}' --channel reviews --order-key pr-7 --as ada""",
        "postroom send @reviewers 'please look' --as ada",
    ),
    "receive": Command(
        "mail",
        "take the next message",
        "postroom receive --as bob --wait 30",
        "postroom receive --as bob --channel reviews --ack --json",
        quotes=(),
    ),
    "ack": Command("mail", "mark a received message as done", "postroom ack ID --as bob"),
    "retry": Command(
        "mail",
        "give a received message back for redelivery; after its last delivery it is dead",
        "postroom retry ID 'the server was down' --delay 60 --as bob",
    ),
    "reply": Command(
        "mail", "answer a received message, and mark it as done", "postroom reply ID 'yes, ship it' --as bob"
    ),
    "refuse": Command("mail", "refuse a received message", "postroom refuse ID 'not my module' --as bob"),
    "withdraw": Command(
        "mail",
        "take back a message that no receiver has yet",
        "postroom withdraw ID --as ada",
        "postroom withdraw ID 'the build is red again' --as ada",
    ),
    "extend": Command("mail", "keep a received message for longer", "postroom extend ID --lease 1800 --as bob"),
    "ask": Command(
        "mail",
        "send a question and wait for the answer",
        "postroom ask bob 'which port?' --as ada --timeout 30",
        "postroom ask bob 'which port?' --to cleo --to dan --enough any --as ada",
        quotes=(),
    ),
    "listen": Command("mail", "print messages as they come", "postroom listen --as bob --json", quotes=()),
    "attach": Command(
        "artifacts",
        "keep a copy of a file in the room, for a message to refer to",
        "postroom attach report.pdf",
        "postroom send bob 'the report' --attach report.pdf --as ada",
    ),
    "artifact": Command(
        "artifacts",
        "get an attached file",
        "postroom artifact get sha256:… -o report.pdf",
        "postroom artifact get sha256:…",
    ),
    "publish": Command(
        "mail", "send a copy to every subscriber of a channel", "postroom publish news 'v2 is out' --as ada"
    ),
    "subscribe": Command(
        "mail", "get a copy of all that is published to a channel", "postroom subscribe news --as bob"
    ),
    "unsubscribe": Command("mail", "stop getting copies", "postroom unsubscribe news --as bob"),
    "schedule": Command(
        "schedule",
        "send messages by the clock: add, list, remove",
        "postroom schedule add stand-up 'stand-up!' --cron '0 9 * * 1-5' --zone Europe/Berlin --to bob --new",
        "postroom schedule add sweep --every 10m --channel chores --missed skip",
        "postroom schedule list",
        "postroom schedule remove sweep",
        quotes=("list",),
    ),
    "peek": Command(
        "look",
        "look at and search messages, without taking any",
        "postroom peek --agent bob",
        "postroom peek --channel reviews --state dead --limit 50",
        "postroom peek --text 'build failed' --since 2d --from ci",
        quotes=(),
    ),
    "search": Command(
        "search",
        "search all messages by words, sender, channel or time",
        "postroom search build failed",
        "postroom search '\"build failed\" -flaky from:ci after:2d'",
        "postroom search 'deploy* in:jobs state:dead' --limit 100 --json",
        quotes=(),
    ),
    "show": Command(
        "messages",
        "show everything about a message, and why it waits",
        "postroom show ID",
        "postroom show @last --json",
        quotes=(),
    ),
    "log": Command(
        "messages",
        "show what happens in the room, step by step",
        "postroom log",
        "postroom log -f --agent bob",
        "postroom log --since 2h --event dead --event refused --json",
        quotes=(),
    ),
    "thread": Command(
        "messages",
        "show the whole conversation that a message belongs to",
        "postroom thread @last",
        "postroom thread ID --limit 20 --json",
        quotes=(),
    ),
    "receipt": Command("look", "show what became of a message", "postroom receipt ID", quotes=()),
    "dead": Command("look", "list dead letters: messages that were set aside", "postroom dead", quotes=()),
    "requeue": Command("rooms", "put dead messages back", "postroom requeue ID", "postroom requeue --all"),
    "replay": Command(
        "rooms",
        "send messages from the past again",
        "postroom replay --since 2h --to bob",
        "postroom replay --since 2h --dry-run",
        "postroom replay --since 2026-11-15T06:00:00Z --channel reviews",
    ),
    "purge": Command(
        "messages",
        "delete finished messages for good, or withdraw one that still waits",
        "postroom purge --before 30d",
        "postroom purge --state dead --to bob --dry-run",
        "postroom purge ID --yes",
    ),
    "retention": Command(
        "retention",
        "keep less of a channel: by age, count or size",
        "postroom retention set builds --age 2d",
        "postroom retention set chatter --count 1000 --bytes 10MB",
        "postroom retention list",
        "postroom retention apply",
        "postroom retention remove builds",
    ),
    "redact": Command(
        "redact",
        "keep secrets out of what is stored: rules for tokens, keys and patterns of your own",
        "postroom redact add all",
        "postroom redact add 'github token'",
        "postroom redact add customer --pattern 'CUST-[0-9]{6,10}'",
        "postroom redact list",
        "postroom redact test 'use CUST-1234567'",
        "postroom redact remove customer",
    ),
    "export": Command(
        "moving",
        "write everything in the room as JSON lines",
        "postroom export room.jsonl",
        "postroom export - | jq -c 'select(.message.state == \"dead\").message.payload'",
    ),
    "import": Command(
        "moving",
        "take over everything in an export or a backup",
        "postroom import room.jsonl --room sqlite:/srv/team/room",
        "postroom import other.jsonl --merge",
        function="import_room",
    ),
    "backup": Command(
        "moving",
        "write the room to one file, while it is used",
        "postroom backup /srv/backup/room.backup",
        "postroom backup room.backup --room nats://nats.example:4222/team",
    ),
    "restore": Command(
        "moving",
        "make a room from a backup",
        "postroom restore /srv/backup/room.backup sqlite:/srv/team/room",
        "postroom restore room.backup files:mail --json",
    ),
    "move": Command(
        "moving",
        "move the room to another store",
        "postroom move sqlite:.postroom nats://nats.example:4222/team",
        "postroom move nats://nats.example:4222/team files:mail --json",
    ),
    "sql": Command(
        "look",
        "query the room's SQLite tables",
        """postroom sql "SELECT id, status FROM messages WHERE status = 'pending'\"""",
        quotes=(),
    ),
    "session": Command(
        "sessions",
        "list, show, stop and clean up sessions",
        "postroom session list",
        "postroom session show ID --json",
        "postroom session stop ID",
        "postroom session clean --older-than 7d",
        quotes=("list", "show"),
    ),
    "pool": Command(
        "pool",
        "test worker pools on this machine",
        "postroom pool check",
        "postroom pool check skeleton evaluation integration",
        "postroom pool check inference --json",
    ),
    "as": Command(
        "run_as", "run a program as an agent", "postroom as bob -- python worker.py --fast", function="run_as"
    ),
    "agent": Command(
        "tokens",
        "forget and rename agents, and make and revoke the tokens that prove their names",
        "postroom agent add me --human",
        "postroom agent add bob",
        "postroom agent add bob --file ~/.config/postroom/bob.token",
        "postroom agent revoke bob",
        "postroom agent revoke --all",
        "postroom agent recover me",
        "postroom agent recover me --lost",
        "postroom agent list",
        "postroom agent forget bob",
        "postroom agent forget bob --mail --yes",
        "postroom agent rename bob robert",
        quotes=("list",),
    ),
    "group": Command(
        "groups",
        "name several agents at once, to send to them or ask them",
        "postroom group add reviewers bob cy",
        "postroom send @reviewers 'please look' --as ada",
        "postroom group remove reviewers cy",
        "postroom group list",
        quotes=("list",),
    ),
    "install": Command(
        "install",
        "set up an agent program to use the room",
        "postroom install claude-code",
        "postroom install codex --as reviewer",
        "postroom install vscode --scope project --dry-run",
    ),
    "uninstall": Command(
        "install",
        "undo an install, byte for byte",
        "postroom uninstall claude-code",
        "postroom uninstall codex --dry-run",
    ),
    "mcp": Command(
        "doors",
        "serve the room to an agent program over MCP",
        "postroom mcp --as bob",
        "postroom mcp --http 8765",
        "postroom mcp --http 0 --as bob --no-token",
    ),
    "hook": Command("doors", "called by the hooks of agent programs", "postroom hook auto"),
    "board": Command(
        "board",
        "the room's tasks: add, claim, report, list",
        "postroom board add T1 'the schema' --as lead",
        "postroom board add T2 'the endpoints' --after T1 --as lead",
        "postroom board claim --as worker-1 --wait 60",
        """postroom board done T1 '{"tables": 4}' --as worker-1""",
        "postroom board claim T2 --as worker-1",
        "postroom board blocked T2 'the spec is silent about errors' --as worker-1",
        "postroom board list --tree",
        "postroom board show T2",
        "postroom board reopen T2 --as lead",
        "postroom board remove T2 --as lead",
        quotes=("claim", "list", "watch", "show"),
    ),
    "reserve": Command(
        "reserve",
        "reserve files while you work on them",
        "postroom reserve 'src/api/**' docs/api.md --as worker-1 --ttl 1h --why 'T3: the API'",
        "postroom reserve",
        "postroom reserve --guard",
        quotes=(),
    ),
    "unreserve": Command(
        "reserve",
        "release reserved files",
        "postroom unreserve 'src/api/**' --as worker-1",
        "postroom unreserve --all --as worker-1",
    ),
    "run": Command(
        "run",
        "run a Patchwork program",
        "postroom run review.pw",
        "postroom run pipeline.pw producer n=3 --json",
        "postroom run historian.pw branch=feature --model ollama:llama3.2:3b --record answers.jsonl",
    ),
    "build": Command(
        "build",
        "turn a Patchwork program into a plugin or into Python",
        "postroom build historian.pw -o plugins/historian",
        "postroom build review.pw --python",
    ),
    "check": Command(
        "patchwork",
        "find mistakes in a Patchwork program before it runs",
        "postroom check review.pw",
        "postroom check pipeline.pw --graph",
        "postroom check examples/*.pw --strict --json",
    ),
    "fmt": Command(
        "patchwork",
        "format a Patchwork program",
        "postroom fmt review.pw",
        "postroom fmt --check examples/*.pw",
        "postroom fmt - < review.pw",
    ),
    "demo": Command("demo", "watch a program run and agents talk while one of them is killed", "postroom demo"),
    "bench": Command(
        "bench",
        "measure how fast Postroom is on this machine",
        "postroom bench",
        "postroom bench --works W1,W3 --rounds 5 --save figures.json",
        "postroom bench --agents 20",
    ),
    "nats": Command(
        "nats",
        "write NATS server configurations for several machines",
        "postroom nats config --nodes 3",
        "postroom nats config --hosts a.example,b.example,c.example --for team --for builds --dir /etc/nats",
    ),
    "help": Command(
        "pages",
        "list the commands and pages, or show one",
        "postroom help",
        "postroom help send",
        "postroom help guide",
        "postroom help topics",
        function="tell",
    ),
    "completion": Command(
        "completion",
        "complete commands, options and names in your shell",
        "postroom completion --install",
        'eval "$(postroom completion bash)"',
    ),
}

GROUPS: Final = (
    (
        "Mail",
        (
            *("send", "receive", "ack", "retry", "reply", "refuse", "extend", "withdraw"),
            *("ask", "listen", "schedule", "attach", "artifact"),
        ),
    ),
    ("Channels and groups", ("publish", "subscribe", "unsubscribe", "group")),
    ("Tasks and files", ("board", "reserve", "unreserve")),
    (
        "Looking, without changing anything",
        (
            *("status", "top", "web", "agents", "mailboxes", "log"),
            *("peek", "search", "show", "thread", "receipt", "dead", "sql"),
        ),
    ),
    ("Sessions and workers", ("session", "pool")),
    ("Programs", ("run", "check", "fmt", "build")),
    ("Agent programs", ("install", "uninstall", "mcp", "hook", "agent")),
    (
        "Rooms",
        (
            "init",
            "allow",
            "doctor",
            "requeue",
            "replay",
            "purge",
            "redact",
            "retention",
            "export",
            "import",
            "backup",
            "restore",
            "move",
            "as",
            "demo",
            "bench",
            "nats",
            "completion",
            "help",
        ),
    ),
)

#: Names that others give to what a command does here.
MEANT: Final = {
    **dict.fromkeys(("grep", "find"), "search"),
    **dict.fromkeys(("events", "history", "logs"), "log"),
    **dict.fromkeys(("watch", "tail", "follow"), "log -f"),
    **dict.fromkeys(("list", "ls", "inbox"), "peek"),
    "dump": "export",
    "migrate": "move",
    **dict.fromkeys(("delete", "rm", "remove", "clean"), "purge"),
    **dict.fromkeys(("cancel", "unsend", "recall"), "withdraw"),
    **dict.fromkeys(("read", "get", "cat", "info", "why"), "show"),
    **dict.fromkeys(("conversation", "chain"), "thread"),
    **dict.fromkeys(("groups", "team"), "group list"),
    **dict.fromkeys(("who", "ps"), "agents"),
    **dict.fromkeys(("nack", "release"), "retry"),
    **dict.fromkeys(("poll", "take", "claim"), "receive"),
    **dict.fromkeys(("resend", "redeliver"), "replay"),
    **dict.fromkeys(("tasks", "task", "todo"), "board list"),
    **dict.fromkeys(("cron", "remind", "every", "schedules"), "schedule add"),
    **dict.fromkeys(("upload", "file"), "attach"),
    **dict.fromkeys(("download", "fetch"), "artifact get"),
    **dict.fromkeys(("queues", "queue"), "mailboxes"),
    **dict.fromkeys(("serve", "ui", "dashboard"), "web"),
}
