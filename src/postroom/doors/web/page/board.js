// Tasks as columns, with owners, leases and what waits for what; and the files that are reserved.
import { el, keyed, nothing, set, setSaid } from "./dom.js";
import { post } from "./api.js";
import { ask, confirm, toast } from "./dialogs.js";
import { now, plain, span } from "./text.js";

const TITLES = { waiting: "Waiting", ready: "Ready", claimed: "Claimed", blocked: "Blocked", done: "Done", aborted: "Aborted" };
const ORDER = ["waiting", "ready", "claimed", "blocked", "done", "aborted"];
const LEASE_MS = 30000;

export class Board {
  constructor(section) {
    this.columns = el("div.columns");
    this.reserved = el("div.reserved");
    this.none = nothing("board", "The board is empty", "Put a task on it: postroom board add T1 'the schema' --as lead");
    this.head = el("p", null, "");
    const add = el("button", { onclick: () => addTask() }, "Add a task");
    section.append(el("div.head", null, el("h1", null, "Board"), this.head, el("div.right", null, add)), this.columns, this.reserved, this.none);
    this.columns.addEventListener("pointerover", (event) => this.hint(event.target.closest?.(".task")));
    this.columns.addEventListener("focusin", (event) => this.hint(event.target.closest?.(".task")));
    setInterval(() => section.hidden || this.tick(), 500);
  }

  show({ columns, reservations }) {
    columns.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
    const all = columns.reduce((sum, column) => sum + column.count, 0);
    const done = columns.find((column) => column.state === "done").count;
    this.none.hidden = all > 0 || reservations.length > 0;
    this.columns.hidden = all === 0;
    set(this.head, all ? `${done} of ${all} done` : "");
    keyed(this.columns, columns, (column) => column.state, (column) => this.column(column), (element, column) => this.fill(element, column));
    this.showReserved(reservations);
    this.tick();
  }

  column({ state }) {
    const list = el("div.list");
    const number = el("span");
    const column = el(`section.column.t-${state}`, { "aria-label": TITLES[state] }, el("h2", null, TITLES[state], number), list, el("p.faint"));
    Object.assign(column, { list, number });
    return column;
  }

  fill(element, { count, tasks }) {
    set(element.number, String(count));
    set(element.lastChild, count > tasks.length ? `and ${count - tasks.length} more` : "");
    keyed(element.list, tasks, (task) => task.id, () => this.card(), (card, task) => this.update(card, task));
  }

  card() {
    const p = { id: el("b"), title: el("p"), owner: el("b"), left: el("span.num"), by: null, bar: el("i"), after: el("div.after"), why: el("p.why"), result: el("p.result"), acts: {} };
    p.by = el("div.by", null, p.owner, p.left);
    p.meter = el("div.left", null, p.bar);
    for (const [name, { word, act }] of Object.entries(ACTS)) p.acts[name] = el("button.quiet", { onclick: () => act(p.task) }, word);
    const card = el("article.card.task", { tabIndex: 0 }, p.id, p.title, p.by, p.meter, p.after, p.why, p.result, el("div.acts", null, ...Object.values(p.acts)));
    card.parts = p;
    return card;
  }

  update(card, task) {
    const p = card.parts;
    p.task = task;
    card.dataset.task = task.id;
    const state = task.state === "ready" && task.unmet.length ? "waiting" : task.state;
    card.className = `card task t-${state}`;
    setSaid(p.id, task.id);
    setSaid(p.title, task.title);
    p.title.hidden = !task.title;
    p.by.hidden = !task.owner;
    setSaid(p.owner, task.owner ?? "");
    p.meter.hidden = task.state !== "claimed";
    for (const [name, { when }] of Object.entries(ACTS)) p.acts[name].hidden = !when.includes(state);
    p.result.hidden = !task.result;
    setSaid(p.result, task.result ?? "");
    p.left.hidden = task.lease_until_ms === null;
    p.why.hidden = !task.why;
    setSaid(p.why, task.why ?? "");
    keyed(p.after, task.after, (id) => id, (id) => el("span", { said: id }), (chip, id) => {
      chip.className = task.unmet.includes(id) ? "said unmet" : "said";
      chip.title = task.unmet.includes(id) ? "not done yet" : "done";
    });
  }

  /** The leases run out while somebody looks. */
  tick() {
    const moment = now();
    for (const card of this.columns.querySelectorAll(".task.t-claimed")) {
      const { task, left, bar } = card.parts;
      if (task.lease_until_ms === null) continue;
      const rest = task.lease_until_ms - moment;
      set(left, rest > 0 ? span(rest) : "lease ended");
      bar.style.transform = `scaleX(${Math.max(0, Math.min(1, rest / Math.max(LEASE_MS, card.whole ?? 0))).toFixed(3)})`;
      card.whole = Math.max(card.whole ?? LEASE_MS, rest);
    }
  }

  /** What a task waits for, and what waits for it. */
  hint(card) {
    const task = card?.parts.task;
    for (const each of this.columns.querySelectorAll(".task")) {
      const other = each.parts.task;
      each.classList.toggle("kin", task !== undefined && (task.after.includes(other.id) || other.after.includes(task.id)));
    }
  }

  showReserved(reservations) {
    this.reserved.hidden = reservations.length === 0;
    this.reserved.replaceChildren(
      el("h2", null, "Reserved files"),
      el("div.card", null, el("table.plain", null,
        el("thead", null, el("tr", null, ...["agent", "files", "for", "left"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", null, ...reservations.map((r) => el("tr", null, el("td", { said: r.agent }), el("td.mono", { said: r.globs.join("  ") }), el("td", null, el("span", { said: r.why ?? "" }), r.exclusive ? "" : " (shared)"), el("td.num", null, span(r.until_ms - now())))))),
      ),
    );
  }
}

/** What a person may do with a task, and in which columns. */
const ACTS = {
  release: { word: "Release", when: ["claimed"], act: release },
  reopen: { word: "Reopen", when: ["blocked", "aborted"], act: reopen },
  abort: { word: "Abort", when: ["waiting", "ready", "claimed", "blocked"], act: abort },
};

async function reopen(task) {
  const done = await confirm(`Reopen ${plain(task.id)}?`, "It is ready again, for anybody.", "Reopen", () => post("/api/reopen-task", { id: task.id }), false);
  if (done) toast(done.reopened ? "Reopened." : "It had already been reopened.");
}

async function abort(task) {
  const why = [el("p.soft", null, task.state === "claimed" ? `${plain(task.owner ?? "")} is told to stop, and anything it reports later does not count.` : "It cannot be claimed until it is reopened."), el("label", null, "Why", el("input", { name: "why", autocomplete: "off" }))];
  const done = await ask(`Abort ${plain(task.id)}?`, why, { yes: "Abort", danger: true, act: (values) => post("/api/abort-task", { id: task.id, why: values.why.trim() }) });
  if (done) toast(done.aborted ? "Aborted." : "It had already ended.");
}

async function addTask() {
  const fields = [
    el("label", null, "ID", el("input", { name: "id", required: true, autocomplete: "off", placeholder: "T1" })),
    el("label", null, "Title", el("input", { name: "title", autocomplete: "off" })),
    el("label", null, "Tasks that must be done first, separated by spaces", el("input", { name: "after", autocomplete: "off" })),
  ];
  const done = await ask("Add a task", fields, { yes: "Add", act: ({ id, title, after }) => post("/api/add-task", { id: id.trim(), title: title.trim(), after: after.split(/[\s,]+/).filter(Boolean) }) });
  if (done) toast("Added.");
}

async function release(task) {
  const done = await confirm(`Release ${plain(task.id)}?`, `${plain(task.owner ?? "")} loses it: it is ready again, and anything its owner reports later may not count.`, "Release", () => post("/api/release-task", { id: task.id }));
  if (done) toast(done.released ? "Released." : "It had already been settled.");
}
