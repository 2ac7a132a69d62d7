// What waits for whom, and how the last hour was; what is limited or paused; and what the room sends by the clock.
import { el, keyed, nothing, set, setSaid, svg } from "./dom.js";
import { post } from "./api.js";
import { ask, confirm, toast } from "./dialogs.js";
import { linkTo } from "./place.js";
import { channelName, count, now, plain, rate, soon, span } from "./text.js";

const LATE_MS = 60000;
const [W, H] = [120, 36];

export class Mailboxes {
  constructor(section) {
    this.head = el("p", null, "");
    this.list = el("div.boxes");
    this.none = nothing("mailboxes", "No mail", "Mailboxes appear when something is sent.");
    this.schedules = el("div.schedules", { hidden: true });
    this.limits = el("div.limits", { hidden: true });
    const stop = el("button", { onclick: () => pause() }, "Pause…");
    section.append(el("div.head", null, el("h1", null, "Mailboxes"), this.head, el("div.right", null, stop)), this.list, this.none, this.limits, this.schedules);
  }

  show({ mailboxes, more, limits, schedules }) {
    const waiting = mailboxes.reduce((sum, box) => sum + box.depth, 0);
    const later = mailboxes.reduce((sum, box) => sum + box.later, 0);
    set(this.head, `${count(waiting)} waiting${later ? `, ${count(later)} not due yet` : ""} · the last hour, one point per minute${more ? ` · and ${more} more mailboxes` : ""}`);
    this.none.hidden = mailboxes.length > 0;
    keyed(this.list, mailboxes, (box) => `${box.to_agent ?? ""}\n${box.channel}`, () => this.card(), (card, box) => this.update(card, box));
    this.showLimits(limits);
    this.showSchedules(schedules);
  }

  showLimits({ list, more }) {
    const shape = JSON.stringify([list, more]);
    if (shape === this.shownLimits) return; // the buttons stay under the pointer
    this.shownLimits = shape;
    this.limits.hidden = list.length === 0;
    this.limits.replaceChildren(
      el("h2", null, "Limits and pauses"),
      el("div.card.wide", null, el("table.plain", null,
        el("thead", null, el("tr", null, ...["of", "limits", "running", "waiting at most", "paused", "by hand"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", null, ...list.map((row) => el("tr", null, el("td", { said: nameOf(row) }), el("td", null, row.limits), el("td.num", null, row.running), el("td.num", null, row.waiting === null ? "" : count(row.waiting)), el("td", null, ...pauseWords(row.paused)), el("td", null, row.paused ? el("button.quiet", { onclick: () => resume(row) }, "Resume") : el("button.quiet", { onclick: () => pause(row.channel) }, "Pause…"))))))),
      el("p.faint", null, more ? `and ${more} more` : ""),
    );
  }

  showSchedules({ list, more }) {
    this.schedules.hidden = list.length === 0;
    this.schedules.replaceChildren(
      el("h2", null, "Schedules"),
      el("div.card", null, el("table.plain", null,
        el("thead", null, el("tr", null, ...["schedule", "when", "to", "missed", "next", "sent", "says"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", null, ...list.map((s) => el("tr", null, el("td", { said: s.name }), el("td.mono", { said: s.when }), el("td", { said: s.to ?? `# ${channelName(s.channel)}` }), el("td", null, s.missed), el("td.num", null, s.next_ms === null ? "never" : soon(s.next_ms)), el("td.num", null, count(s.sent)), el("td", { said: s.says })))))),
      el("p.faint", null, more ? `and ${more} more` : ""),
    );
  }

  card() {
    const p = {
      name: el("a.opens", { title: "Show what waits here" }), channel: el("small"), paused: el("span.chip.paused", { hidden: true }, "paused"), depth: el("span"), oldest: el("small"), later: el("small"),
      deep: new Plot("waiting", "--notified"), flow: new Plot("in and out", "--stored", true), wait: new Plot("wait", "--claimed"),
    };
    const card = el("article.card.mailbox", null, el("div.who", null, p.name, p.channel, p.paused), el("div.depth", null, p.depth, p.oldest, p.later), p.deep.figure, p.flow.figure, p.wait.figure);
    card.parts = p;
    return card;
  }

  update(card, box) {
    const p = card.parts;
    card.dataset.box = `${box.to_agent ?? ""}#${box.channel}`;
    const age = box.oldest_ms === null ? 0 : now() - box.oldest_ms;
    setSaid(p.name, box.to_agent ?? `# ${channelName(box.channel)}`);
    setSaid(p.channel, box.to_agent === null ? "for any agent" : `# ${channelName(box.channel)}`);
    p.paused.hidden = !box.paused;
    const whose = box.to_agent === null ? { free: "1" } : { to: box.to_agent };
    p.name.href = linkTo("conversation", { ...whose, channel: box.channel, state: "stored" });
    set(p.later, box.later ? `${count(box.later)} later, next ${soon(box.next_due_ms)}` : "");
    set(p.depth, count(box.depth));
    set(p.oldest, box.depth ? `oldest ${span(age)}` : box.later ? "none due" : "empty");
    p.depth.parentElement.classList.toggle("late", box.depth > 0 && age > LATE_MS);
    const { plot } = box;
    p.deep.draw(plot.depth, null, `at most ${count(Math.max(0, ...plot.depth.filter((n) => n !== null)))}`);
    p.flow.draw(plot.came, plot.went, `${rate(box.in_per_s)} in · ${rate(box.out_per_s)} out /s`);
    p.wait.draw(plot.wait_p95_ms, null, box.wait_p50_ms === null ? "–" : `${span(box.wait_p50_ms)} · p95 ${span(box.wait_p95_ms)} · p99 ${span(box.wait_p99_ms)}`);
  }
}

const nameOf = ({ agent, channel }) => agent ?? `# ${channelName(channel)}`;

function pauseWords(paused) {
  if (!paused) return [];
  return [el("span.chip.paused", null, "paused"), " by ", el("b", { said: paused.by }), ` since ${soon(paused.since_ms)}`, ...(paused.reason ? [": ", el("span", { said: paused.reason })] : [])];
}

/** Pause a channel; without one, the person names it, or an agent. */
async function pause(channel = "") {
  const done = await ask(
    "Pause",
    [
      el("p.soft", null, "Nothing is taken until somebody resumes it. Work that runs goes on, and messages are stored as ever."),
      el("div.pair", null, el("label", null, "Channel", el("input", { name: "channel", value: channel, autocomplete: "off" })), el("label", null, "or an agent", el("input", { name: "agent", autocomplete: "off" }))),
      el("label", null, "Why", el("input", { name: "reason", autocomplete: "off" })),
    ],
    { yes: "Pause", act: (values) => post("/api/pause", { channel: values.channel.trim() || null, agent: values.agent.trim() || null, reason: values.reason.trim() }) },
  );
  if (done) toast("Paused.");
}

async function resume(row) {
  const done = await confirm(`Resume ${plain(nameOf(row))}?`, "Receivers that wait get what is there.", "Resume", () => post("/api/resume", { channel: row.channel, agent: row.agent }), false);
  if (done) toast("Resumed.");
}

/** An hour as a small line; gaps where nothing is known. */
class Plot {
  constructor(name, colour, two = false) {
    this.says = el("b");
    this.area = svg("path", { class: "area" });
    this.path = svg("path", { class: "path" });
    this.second = two ? svg("path", { class: "second" }) : null;
    this.figure = el("figure.plot", null, el("figcaption", null, name, this.says),
      svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { class: "base", d: `M0 ${H}H${W}` }), this.area, this.path, ...(two ? [this.second] : [])));
    this.figure.style.setProperty("--p", `var(${colour})`);
  }

  draw(points, others, says) {
    set(this.says, says);
    const shape = JSON.stringify([points, others]);
    if (shape === this.shape) return;
    this.shape = shape;
    const most = Math.max(1, ...points.filter((n) => n !== null), ...(others ?? []));
    const line = path(points, most);
    this.path.setAttribute("d", line.d);
    this.area.setAttribute("d", line.area);
    this.second?.setAttribute("d", path(others, most).d);
  }
}

function path(points, most) {
  let d = "";
  let area = "";
  let open = false;
  const x = (n) => ((n / (points.length - 1)) * W).toFixed(1);
  points.forEach((value, n) => {
    if (value === null) {
      if (open) area += `L${x(n - 1)} ${H}Z`;
      open = false;
      return;
    }
    const y = (H - 1 - (value / most) * (H - 4)).toFixed(1);
    const alone = !open && points[n + 1] == null;
    d += alone ? `M${x(n - 0.35)} ${y}H${x(n + 0.35)}` : `${open ? "L" : "M"}${x(n)} ${y}`;
    area += open ? `L${x(n)} ${y}` : `M${x(n)} ${H}L${x(n)} ${y}`;
    open = true;
  });
  if (open) area += `L${x(points.length - 1)} ${H}Z`;
  return { d, area };
}
