// Tasks as columns, with owners, leases and what waits for what; and the files that are reserved.
import { el, keyed, nothing, set, setSaid } from "./dom.js";
import { post } from "./api.js";
import { confirm, toast } from "./dialogs.js";
import { now, plain, span } from "./text.js";

const TITLES = { ready: "Ready", claimed: "Claimed", blocked: "Blocked", done: "Done", aborted: "Aborted" };
const ORDER = ["ready", "claimed", "blocked", "done", "aborted"];
const LEASE_MS = 30000;

export class Board {
  constructor(section) {
    this.columns = el("div.columns");
    this.reserved = el("div.reserved");
    this.none = nothing("board", "The board is empty", "Put a task on it: postroom board add T1 'the schema' --as lead");
    this.head = el("p", null, "");
    section.append(el("div.head", null, el("h1", null, "Board"), this.head), this.columns, this.reserved, this.none);
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
    const p = { id: el("b"), title: el("p"), owner: el("b"), left: el("span.num"), by: null, bar: el("i"), after: el("div.after"), why: el("p.why"), act: null };
    p.by = el("div.by", null, p.owner, p.left);
    p.meter = el("div.left", null, p.bar);
    p.act = el("button.quiet", { onclick: () => release(p.task) }, "Release");
    const card = el("article.card.task", { tabIndex: 0 }, p.id, p.title, p.by, p.meter, p.after, p.why, p.act);
    card.parts = p;
    return card;
  }

  update(card, task) {
    const p = card.parts;
    p.task = task;
    card.dataset.task = task.id;
    card.className = `card task t-${task.state === "ready" && task.unmet.length ? "waits" : task.state}`;
    setSaid(p.id, task.id);
    setSaid(p.title, task.title);
    p.title.hidden = !task.title;
    p.by.hidden = !task.owner;
    setSaid(p.owner, task.owner ?? "");
    p.meter.hidden = p.act.hidden = task.state !== "claimed";
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
        el("thead", null, el("tr", null, ...["agent", "files", "for", "left"].map((name) => el("th", null, name)))),
        el("tbody", null, ...reservations.map((r) => el("tr", null, el("td", { said: r.agent }), el("td.mono", { said: r.globs.join("  ") }), el("td", null, el("span", { said: r.why ?? "" }), r.exclusive ? "" : " (shared)"), el("td.num", null, span(r.until_ms - now())))))),
      ),
    );
  }
}

async function release(task) {
  const done = await confirm(`Release ${plain(task.id)}?`, `${plain(task.owner ?? "")} loses it: it is ready again, and what its owner reports later may no longer count.`, "Release", () => post("/api/release-task", { id: task.id }));
  if (done) toast(done.released ? "Released." : "It was settled before.");
}
