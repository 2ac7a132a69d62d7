// Workers that do one thing together, and fail together: as a tree, with what they wrote.
import { el, keyed, nothing, set, setSaid } from "./dom.js";
import { post } from "./api.js";
import { confirm, toast } from "./dialogs.js";
import { go, here } from "./place.js";
import { clock, count, now, plain, span } from "./text.js";

export class Sessions {
  constructor(section) {
    this.list = el("div.pick");
    this.chosen = el("div");
    this.pools = el("div.section");
    this.decisions = el("div.section");
    this.head = el("p", null, "");
    this.none = nothing("sessions", "No sessions", "A session appears when a program opens one: with room.session() as session.");
    this.body = el("div.sessions", null, this.list, this.chosen);
    section.append(el("div.head", null, el("h1", null, "Sessions"), this.head), this.body, this.pools, this.decisions, this.none);
  }

  show({ sessions, chosen, pools, decisions, more }) {
    const open = sessions.filter((session) => session.state === "open" || session.state === "stuck").length;
    set(this.head, sessions.length ? `${open} open${more ? ` · the latest of ${sessions.length + more}` : ""}` : "");
    this.body.hidden = sessions.length === 0;
    this.none.hidden = sessions.length > 0 || pools.length > 0 || decisions.length > 0;
    const moment = now();
    keyed(this.list, sessions, (session) => session.id, (session) => this.line(session), (line, session) => {
      line.setAttribute("aria-current", String(session.id === chosen?.id));
      set(line.when, `${span(moment - session.opened_ms)} ago`);
      line.chip.className = `chip s-${session.state}`;
      set(line.chip, session.state);
      set(line.what, session.failure ? plain(session.failure) : session.state === "ended" ? "ended without errors" : `${session.members} member${session.members === 1 ? "" : "s"}`);
    });
    this.showChosen(chosen);
    this.showPools(pools);
    this.showDecisions(decisions);
  }

  line(session) {
    const when = el("b.num");
    const chip = el("span.chip");
    const what = el("small");
    const line = el("button", { title: session.id, onclick: () => go("sessions", { ...here().query, pick: session.id }) }, when, chip, what);
    return Object.assign(line, { when, chip, what });
  }

  showChosen(session) {
    const shape = JSON.stringify(session);
    if (shape === this.shape) return;
    this.shape = shape;
    if (!session) return this.chosen.replaceChildren();
    const wasOpen = new Set([...this.chosen.querySelectorAll("details[open]")].map((each) => each.dataset.key));
    const over = session.state === "failed" || session.state === "ended";
    const head = el("div.head", null, el("h2.mono", null, session.id), el(`span.chip.s-${session.state}`, null, session.state),
      el("div.right", null, !over && el("button.danger", { onclick: () => stop(session) }, "Stop")));
    this.chosen.replaceChildren(
      head,
      session.failure ? failure(session.failure) : "",
      el("div.card", null, tree(session.workers)),
      session.more_workers ? el("p.faint", null, `and ${session.more_workers} more workers`) : "",
      session.mailboxes.length ? boxes(session.mailboxes) : "",
    );
    for (const each of this.chosen.querySelectorAll("details")) each.open = wasOpen.has(each.dataset.key) || each.dataset.key === "stack";
  }

  /** Who was chosen to answer, and why the others were not. */
  showDecisions(decisions) {
    this.decisions.hidden = decisions.length === 0;
    const shape = JSON.stringify(decisions);
    if (shape === this.decided) return;
    this.decided = shape;
    const others = (d) => d.outcomes.filter((o) => !o.granted).map((o) => `${o.name}: ${o.reason ?? "not granted"}`).join(", ");
    this.decisions.replaceChildren(
      el("h2", null, "Decisions"),
      table([["decided"], ["message"], ["by"], ["may answer"], ["the others"]],
        el("tbody", null, ...decisions.map((d) => el("tr", null, el("td.num", null, clock(d.time_ms)), el("td.mono", { said: d.message_id }), el("td", { said: String(d.trigger ?? "").replaceAll("_", " ") }), el("td", { said: (d.granted ?? []).join(", ") || "nobody" }), el("td.soft", { said: others(d) }))))),
    );
  }

  /** Pools of workers that judge messages: what each worker is at, and how often it had to be started again. */
  showPools(pools) {
    const moment = now();
    keyed(this.pools, pools, (pool) => pool.id, (pool) => this.pool(pool), (section, pool) => {
      const p = section.parts;
      setSaid(p.name, pool.name);
      setSaid(p.evaluator, pool.evaluator === pool.name ? "" : `${pool.evaluator} · `);
      const restarts = pool.workers.reduce((sum, worker) => sum + worker.restarts, 0);
      set(p.about, `${pool.workers.length + pool.more} workers · ${restarts} restart${restarts === 1 ? "" : "s"} · for ${span(moment - pool.since_ms)}`);
      p.failure.hidden = pool.failure === null;
      if (pool.failure !== null) setSaid(p.failure, pool.failure);
      keyed(p.rows, pool.workers, (worker) => worker.name, (worker) => row(worker), (line, worker) => updateRow(line, worker, moment));
      set(p.more, pool.more ? `and ${pool.more} more workers` : "");
    });
    this.pools.hidden = pools.length === 0;
  }

  pool() {
    const p = { name: el("span"), evaluator: el("small.soft"), about: el("small.soft"), failure: el("div.card.failure", { role: "alert" }), rows: el("tbody"), more: el("p.faint") };
    const section = el("section.pool", null, el("h2", null, "Pool ", p.name), el("p", null, p.evaluator, p.about), p.failure,
      table([["worker"], ["state"], ["process"], ["restarts", "num"], ["done", "num"], ["failed", "num"], ["in progress", "num"], ["last unexpected exit"]], p.rows), p.more);
    section.parts = p;
    return section;
  }
}

function row(worker) {
  const p = { chip: el("span.chip"), pid: el("td.mono.soft"), restarts: el("td.num"), done: el("td.num"), failed: el("td.num"), hand: el("td.num"), exit: el("td.soft") };
  const line = el("tr", { "data-worker": worker.name }, el("td", null, el("b", { said: worker.name })), el("td", null, p.chip), p.pid, p.restarts, p.done, p.failed, p.hand, p.exit);
  line.parts = p;
  return line;
}

function updateRow(line, worker, moment) {
  const p = line.parts;
  p.chip.className = `chip p-${worker.state}`;
  set(p.chip, worker.state);
  set(p.pid, worker.pid === null ? "none" : `pid ${worker.pid}`);
  set(p.restarts, count(worker.restarts));
  p.restarts.classList.toggle("bad", worker.restarts > 0);
  set(p.done, count(worker.done));
  set(p.failed, count(worker.failed));
  p.failed.classList.toggle("bad", worker.failed > 0);
  set(p.hand, count(worker.waiting));
  setSaid(p.exit, worker.last_exit === null ? "" : `${span(Math.floor((moment - worker.last_exit_ms) / 1000) * 1000)} ago: ${worker.last_exit}`);
}

/** A table of plain cells, which scrolls sideways where there is no room for it. */
function table(columns, body) {
  return el("div.card.wide", { tabIndex: 0, role: "region", "aria-label": `Table: ${columns.map(([name]) => name).join(", ")}` }, el("table.plain", null,
    el("thead", null, el("tr", null, ...columns.map(([name, kind]) => el(kind ? `th.${kind}` : "th", { scope: "col" }, name)))), body));
}

function failure({ message, stack, worker, timestamp, kind }) {
  return el("div.card.failure", { role: "alert" },
    el("div", null, el("b", null, kind || "Failed"), worker ? el("span.soft", null, ` through ${plain(worker)}`) : "", el("span.faint", null, ` · ${timestamp}`)),
    el("p", { saidLines: message }),
    stack ? el("details", { "data-key": "stack" }, el("summary", null, "Traceback"), el("pre", { tabIndex: 0, saidLines: stack })) : "");
}

/** Workers under those who started them. */
function tree(workers) {
  const byParent = new Map();
  const numbers = new Set(workers.map((worker) => worker.number));
  const opener = workers.find((worker) => worker.role === "opener");
  const root = opener ? opener.number : 0;
  if (!opener) byParent.set(null, [{ number: 0, name: "caller", role: "opener", state: "left", waits: [] }]);
  for (const worker of workers) {
    const parent = worker.number === root ? null : numbers.has(worker.parent) && worker.parent !== worker.number ? worker.parent : root;
    byParent.set(parent, [...(byParent.get(parent) ?? []), worker]);
  }
  const branch = (parent, depth) => (byParent.get(parent) ?? []).map((worker) => {
    const under = depth < 12 ? branch(worker.number, depth + 1) : [];
    return el("li", null, leaf(worker), under.length ? el("ul", null, ...under) : "");
  });
  return el("ul.tree", null, ...branch(null, 0));
}

function leaf(worker) {
  const outputs = [["out", worker.out], ["err", worker.err]].filter(([, text]) => text);
  const state = worker.state.split(" ")[0];
  return el("div.worker", { "data-worker": worker.name }, el(`span.chip.w-${/^[a-z]+$/.test(state) ? state : "other"}`, null, worker.state), el("b", { said: worker.name }),
    worker.role === "worker" ? "" : el("span.soft", null, worker.role),
    worker.waits.length ? el("span.waits-on", { said: `waits ${worker.waits.join("; ")}` }) : "",
    worker.pid ? el("code", null, `pid ${worker.pid}`) : "",
    ...outputs.map(([name, text]) => {
      const details = el("details", null, el("summary", null, name === "out" ? "output" : "error output"), el("pre", { tabIndex: 0, saidLines: text }));
      details.dataset.key = `${worker.number} ${name}`;
      return details;
    }));
}

function boxes(mailboxes) {
  return el("div.section", null, el("h2", null, "Mailboxes"), el("div.card", null, el("table.plain", null,
    el("thead", null, el("tr", null, ...["mailbox", "sent", "received", "waiting"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", null, ...mailboxes.map((box) => el("tr", null, el("td", { said: box.name }), el("td.num", null, String(box.sent)), el("td.num", null, String(box.received)), el("td.num", null, String(box.waiting))))))));
}

async function stop(session) {
  const done = await confirm("Stop this session?", "It fails for all its members, and workers still running after two seconds are killed.", "Stop it", () => post("/api/stop-session", { id: session.id }));
  if (done) toast(done.workers_gone ? "Stopped." : "Stopped; some of its workers are still running.");
}
