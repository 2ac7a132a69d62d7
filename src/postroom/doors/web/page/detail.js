// One message: its envelope, what it says, its ledger, and what a person may do with it.
import { byId, el, icon, lookChip } from "./dom.js";
import { get, post } from "./api.js";
import { confirm, compose, toast } from "./dialogs.js";
import { linkTo } from "./place.js";
import { clock, count, dayAndClock, now, plain, say, shortened, span } from "./text.js";

const AGAIN_MS = 250; // a message that changes often is fetched this often

export class Detail {
  constructor(about, { onReveal, onClose }) {
    Object.assign(this, { about, onReveal, onClose });
    this.drawer = byId("drawer");
    this.id = null;
  }

  async open(id) {
    if (id === this.id) return;
    this.id = id;
    await this.load();
  }

  close() {
    this.id = null;
    if (!this.drawer.hidden) {
      this.drawer.hidden = true;
      this.onClose();
    }
  }

  /** These messages changed: if the open one is among them, it is fetched anew. */
  changed(lines) {
    if (this.id && !this.waiting && lines.some((line) => line.id === this.id || line.answer_to === this.id || (line.chain_id ?? line.id) === this.chain)) {
      this.waiting = setTimeout(() => {
        this.waiting = 0;
        this.load();
      }, AGAIN_MS);
    }
  }

  async load() {
    const id = this.id;
    if (!id) return;
    try {
      const data = await get(`/api/messages/${encodeURIComponent(id)}`);
      if (id === this.id) this.show(data);
    } catch (error) {
      toast(error.message, true);
      if (error.status === 404) this.close();
    }
  }

  show(data) {
    const { envelope, line } = data;
    this.chain = envelope.chain_id ?? envelope.id;
    const other = this.drawer.dataset.id !== envelope.id;
    const scrolled = this.drawer.scrollTop;
    this.drawer.dataset.id = envelope.id;
    this.drawer.hidden = false;
    const parts = [
      el("header", null, lookChip(line.look), el("h2", { said: envelope.type }), el("button.quiet", { title: "Close (Esc)", "aria-label": "Close", onclick: () => this.close() }, icon("close"))),
      this.way(data),
      this.waits(data),
      this.payload(data),
      this.kin(data),
      this.thread(data),
      el("h3", null, "Ledger"),
      el("ol.steps", null, ...data.ledger.map((entry) => this.step(entry))),
      this.attempts(data),
      el("h3", null, "Envelope"),
      this.envelope(data),
      this.acts(data),
    ];
    this.drawer.replaceChildren(...parts.filter((part) => part !== null));
    this.drawer.scrollTop = other ? 0 : scrolled;
  }

  way({ envelope, recipient_known }) {
    const to = envelope.to_agent === null ? el("span", null, "# ", el("span", { said: envelope.channel })) : el("span", { said: envelope.to_agent });
    return el("div.way", null, el("span", { said: envelope.from_agent }), el("i", null, "→"), to,
      envelope.lane === "human" && el("span.chip", null, "human"),
      !recipient_known && el("span.chip.look-retried", null, "not joined yet"));
  }

  /** Why a message is where it is, and until when: times as the rest of the page tells them. */
  waits({ due_ms, line, max_deliveries, reason }) {
    if (!line.due_ms) return reason && el("p.due", { said: reason });
    const rest = due_ms - now();
    const when = `${dayAndClock(due_ms)}${rest > 0 ? `, in ${span(rest)}` : ""}`;
    return el("p.due", null, line.deliveries ? `Failed ${line.deliveries} of ${max_deliveries} times; the next try is at ${when}.` : `Not due until ${when}.`);
  }

  payload(data) {
    const pre = el("pre", { tabIndex: 0, "aria-label": "Payload", role: "region", saidLines: data.payload });
    const box = el("div", null, pre);
    let shown = data.payload.length;
    if (shown < data.payload_size) {
      const more = el("button.more", {
        onclick: async () => {
          const piece = await get(`/api/messages/${encodeURIComponent(data.envelope.id)}/payload`, { start: shown });
          shown += piece.payload.length;
          pre.append(say(el("span"), piece.payload, true));
          more.textContent = `more (${count(piece.payload_size - shown)} characters)`;
          if (shown >= piece.payload_size) more.remove();
        },
      }, `more (${count(data.payload_size - shown)} characters)`);
      box.append(more);
    }
    return box;
  }

  kin({ question, answers, envelope }) {
    const link = (line, word) =>
      el("button.kinlink", { onclick: () => this.onReveal(line) }, lookChip(line.look), el("span", null, `${word} ${plain(line.from_agent)}: ${plain(line.text ?? "")}`));
    const links = [...(question ? [link(question, "answers")] : []), ...answers.map((line) => link(line, "answered by"))];
    const thread = el("a", { href: linkTo("conversation", { thread: envelope.chain_id ?? envelope.id, message: envelope.id }) }, "Show the whole thread");
    return el("div.kin", null, links.length ? el("h3", null, "Question and answer") : "", ...links, thread);
  }

  /** The conversation that it belongs to, as it was said; this message is marked. */
  thread({ thread, envelope }) {
    if (thread.count < 2) return null;
    const left = thread.count - thread.lines.length;
    const said = (line) => {
      const here = line.id === envelope.id;
      const to = line.to_agent ?? `# ${line.channel}`;
      return el(here ? "li.here" : "li", { "aria-current": here && "true" },
        el("button.turn", { title: "Show this message", onclick: () => this.onReveal(line) },
          el("span.who", null, el("b", { said: line.from_agent }), " → ", el("span", { said: to }), " ", el("time", { title: dayAndClock(line.sent_ms) }, clock(line.sent_ms)), lookChip(line.look)),
          el("span.words", { saidLines: line.text ?? "" })));
    };
    return el("div", null, el("h3", null, `Conversation of ${count(thread.count)} messages`),
      left > 0 && el("p.soft", null, `The latest ${count(thread.lines.length)} are shown.`),
      el("ol.thread", { "aria-label": "Conversation" }, ...thread.lines.map(said)));
  }

  step({ event, time, agent, detail }) {
    const look = this.about.look_after[event];
    return el(look ? `li.look-${look}` : "li", { title: this.about.events[event] ?? "" },
      el("time", { title: time }, time.slice(11, 23)), el("b", null, event.replace("_", " ")), agent && " ", agent && el("span.soft", { said: agent }), detail && el("p", { saidLines: detail }));
  }

  attempts({ attempts }) {
    if (!attempts.length) return null;
    return el("div", null, el("h3", null, "Failed attempts"), el("ol.steps", null,
      ...attempts.map((a) => el("li.look-retried", null, el("b", { said: a.agent ?? "nobody" }), el("span.soft", null, ` for ${span(Date.parse(a.ended_at) - Date.parse(a.claimed_at))}`), a.error && el("p", { saidLines: a.error })))));
  }

  envelope(data) {
    const { envelope } = data;
    const rows = {
      id: envelope.id,
      handle: data.handle === envelope.id ? null : data.handle,
      channel: envelope.channel,
      priority: envelope.priority,
      sent: dayAndClock(Date.parse(envelope.timestamp)),
      expires: envelope.expires_at && dayAndClock(Date.parse(envelope.expires_at)),
      deliveries: `${envelope.delivery_count} of ${data.max_deliveries}`,
      "lease until": data.lease_until_ms && dayAndClock(data.lease_until_ms),
      due: data.due_ms && dayAndClock(data.due_ms),
      correlation: envelope.correlation_id,
      chain: envelope.chain_id && `${envelope.chain_id}, hop ${envelope.hop_count}`,
      trace: envelope.trace,
      error: envelope.error,
    };
    return el("dl", null, ...Object.entries(rows).filter(([, value]) => value != null && value !== "").flatMap(([name, value]) => [el("dt", null, name), el("dd", { said: String(value) })]));
  }

  acts({ envelope, line }) {
    const acts = [];
    const id = envelope.id;
    if (["dead", "refused", "expired"].includes(envelope.state)) {
      acts.push(el("button.primary", { onclick: () => requeue([id]) }, "Put back"));
    }
    if (["acked", "answered", "dead", "refused", "expired", "withdrawn"].includes(envelope.state)) {
      acts.push(el("button.danger", { onclick: async () => (await drop([id])) && this.close() }, "Drop"));
    }
    if (envelope.state === "claimed") acts.push(el("button.danger", { onclick: () => release(id, line.claimed_by) }, "Release the claim"));
    acts.push(el("button", { onclick: () => compose(this.about, envelope.from_agent) }, `Write to ${shortened(plain(envelope.from_agent), 28)}`));
    return el("div.acts", null, ...acts);
  }
}

const messages = (n) => (n === 1 ? "this message" : `these ${n} messages`);

export async function requeue(ids) {
  const done = await confirm(`Put ${messages(ids.length)} back?`, ids.length === 1 ? "It is delivered again, with its delivery count reset." : "They are delivered again, with their delivery counts reset.", "Put back", () => post("/api/requeue", { ids }), false);
  if (done) toast(`${done.ids.length} put back.`);
  return done;
}

export async function drop(ids) {
  const done = await confirm(`Drop ${messages(ids.length)}?`, `${ids.length === 1 ? "It is deleted for good, with its ledger." : "They are deleted for good, with their ledgers."} The room remembers that you did it.`, "Drop", () => post("/api/drop", { ids }));
  if (done) toast(`${done.ids.length} dropped.`);
  return done;
}

async function release(id, holder) {
  const done = await confirm(`Release the claim of ${plain(holder ?? "its receiver")}?`, "The message is delivered again, perhaps to another agent. If its receiver is still working on it, its report no longer counts. On its last delivery it becomes a dead letter.", "Release", () => post("/api/release", { id }));
  if (done) toast(done.released ? "Released." : "It had already been settled.");
}
