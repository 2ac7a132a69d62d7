// Who is here, what they do, and who waits for whom.
import { el, icon, keyed, nothing, set, setSaid, svg } from "./dom.js";
import { linkTo } from "./place.js";
import { channelName, now, plain, rate, span } from "./text.js";

const ORDER = { gone: 0, active: 1, stopped: 8, seen: 9 };

export class Agents {
  constructor(section, { open }) {
    this.open = open;
    this.people = el("div.people");
    this.graph = el("div.card.graph");
    this.head = el("p", null, "");
    this.none = nothing("agents", "No agents yet", "Agents appear when they open the room, or when a command or hook acts in their name.");
    this.body = el("div.agents", null, this.people, this.graph);
    section.append(el("div.head", null, el("h1", null, "Agents"), this.head), this.body, this.none);
  }

  show({ agents, waits }) {
    const moment = now();
    agents.sort((a, b) => (ORDER[a.status] ?? 1) - (ORDER[b.status] ?? 1) || a.name.localeCompare(b.name));
    const alive = agents.filter((agent) => agent.alive).length;
    const gone = agents.filter((agent) => agent.status === "gone").length;
    set(this.head, `${alive} running${gone ? `, ${gone} gone` : ""}, ${agents.length} known`);
    this.none.hidden = agents.length > 0;
    this.body.hidden = agents.length === 0;
    const byAsker = Map.groupBy ? Map.groupBy(waits, (wait) => wait.asker) : group(waits);
    keyed(this.people, agents, (agent) => agent.name, () => this.person(), (card, agent) => this.update(card, agent, byAsker.get(agent.name) ?? [], moment));
    this.draw(waits, moment);
  }

  person() {
    const p = {
      dot: el("i"), name: el("a.opens"), paused: el("span.chip.paused", { hidden: true, title: "It takes nothing; the view of mailboxes tells why" }, "paused"), status: el("small"), work: el("div.work"), held: el("div"), wait: el("div.wait"),
      pending: el("b"), mail: null, sent: el("b"), ended: el("b"),
    };
    p.mail = el("a", { title: "Show what waits" }, p.pending, " waiting");
    const card = el("article.card.person", null, el("div.name", null, p.dot, p.name, p.paused, p.status), p.work, p.held, p.wait,
      el("div.figures", null, p.mail, el("span", null, p.sent, "/s sent"), el("span", null, p.ended, "/s ended")));
    card.parts = p;
    return card;
  }

  update(card, agent, waits, moment) {
    const p = card.parts;
    card.className = `card person ${agent.status === "gone" ? "dead" : agent.alive ? "alive" : ""}`;
    card.dataset.agent = agent.name;
    setSaid(p.name, agent.name);
    p.name.href = linkTo("conversation", { agent: agent.name });
    p.name.title = `Show the messages of ${plain(agent.name)}`;
    p.mail.href = linkTo("conversation", { to: agent.name, state: "stored" });
    p.paused.hidden = !agent.paused;
    set(p.status, this.status(agent, moment));
    p.work.hidden = !agent.current_task;
    setSaid(p.work, agent.current_task ?? "");
    keyed(p.held, agent.holds, (line) => line.id, (line) => el("button.held", { onclick: () => this.open(line.id), title: "working on this message" }, icon("claimed"), el("span", { said: `${line.type === "message" ? "" : line.type + ": "}${line.text ?? ""}` })), () => {});
    const wait = waits[0];
    p.wait.hidden = !wait;
    p.wait.classList.toggle("cycle", waits.some((each) => each.cycle));
    if (wait) set(p.wait, `waits for ${waits.map((each) => nameOf(each)).join(", ")} · ${span(moment - wait.since_ms)}`);
    set(p.pending, String(agent.pending));
    set(p.sent, rate(agent.sent_per_s));
    set(p.ended, rate(agent.ended_per_s));
  }

  status(agent, moment) {
    const age = span(Math.floor((moment - agent.heartbeat_ms) / 1000) * 1000);
    if (agent.status === "gone") return `gone · ♥ ${age} ago`;
    if (agent.status === "seen") return `seen ${age} ago`;
    if (agent.status === "stopped") return `stopped ${age} ago`;
    return `${plain(agent.status)}${agent.processes > 1 ? ` ×${agent.processes}` : ""} · ♥ ${age}`;
  }

  draw(waits, moment) {
    const shape = JSON.stringify(waits.map((wait) => [wait.asker, wait.peer, wait.kind, wait.cycle]));
    if (shape !== this.shape) {
      this.shape = shape;
      const cycle = waits.filter((wait) => wait.cycle);
      this.graph.replaceChildren(
        el("h2", null, "Who waits for whom"),
        waits.length ? drawing(waits) : el("p.soft", null, "No agent is waiting for an answer."),
        ...(cycle.length ? [el("p.alarm", { role: "alert" }, `A cycle: ${[...new Set(cycle.map((wait) => plain(wait.asker)))].join(", ")} all wait for each other.`)] : []),
      );
    }
    for (const age of this.graph.querySelectorAll(".age")) age.textContent = span(moment - Number(age.dataset.since));
  }
}

function group(waits) {
  const found = new Map();
  for (const wait of waits) found.set(wait.asker, [...(found.get(wait.asker) ?? []), wait]);
  return found;
}

function nameOf(wait) {
  if (wait.kind === "mailbox") return `mailbox ${plain(wait.peer)}`;
  return wait.peer === null ? "any agent" : plain(channelName(wait.peer));
}

/** Names on a circle, an arrow from each who waits to whom it waits for. */
function drawing(waits) {
  const names = new Map();
  for (const wait of waits) {
    names.set(`@${wait.asker}`, { label: plain(wait.asker), box: false });
    const key = wait.kind === "mailbox" ? `#${wait.peer}` : `@${wait.peer ?? "?"}`;
    if (!names.has(key)) names.set(key, { label: wait.peer === null ? "any agent" : plain(wait.peer), box: wait.kind === "mailbox" });
  }
  const nodes = [...names.values()];
  const [w, h] = [350, 320];
  nodes.forEach((node, n) => {
    const angle = (n / nodes.length) * 2 * Math.PI - Math.PI / 2;
    node.short = node.label.length > 16 ? `${node.label.slice(0, 15)}…` : node.label;
    node.half = Math.max(26, node.short.length * 3.7 + 12);
    node.x = w / 2 + (nodes.length === 1 ? 0 : Math.cos(angle) * (w / 2 - 62));
    node.y = h / 2 + (nodes.length === 1 ? 0 : Math.sin(angle) * (h / 2 - 30));
  });
  const picture = svg("svg", { class: "waits", viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": waits.map((wait) => `${plain(wait.asker)} waits for ${nameOf(wait)}${wait.cycle ? ", in a cycle" : ""}`).join("; ") });
  for (const wait of waits.slice(0, 80)) {
    const from = names.get(`@${wait.asker}`);
    const to = names.get(wait.kind === "mailbox" ? `#${wait.peer}` : `@${wait.peer ?? "?"}`);
    if (wait.cycle) from.cycle = to.cycle = true;
    picture.append(...edge(from, to, wait));
  }
  for (const node of nodes) {
    picture.append(svg("g", { class: `node${node.cycle ? " cycle" : ""}${node.box ? " box" : ""}`, transform: `translate(${node.x} ${node.y})` },
      svg("rect", { x: -node.half, y: -14, width: node.half * 2, height: 28, rx: node.box ? 4 : 14 }), svg("text", {}, node.short)));
  }
  return picture;
}

function edge(from, to, wait) {
  const kind = wait.cycle ? " cycle" : "";
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const long = Math.hypot(dx, dy) || 1;
  const [nx, ny] = [dy / long, -dx / long]; // outwards, on the circle
  const bend = 22; // two who wait for each other have two arrows, one on each side
  const [mx, my] = [(from.x + to.x) / 2 + nx * bend, (from.y + to.y) / 2 + ny * bend];
  const end = rim(to, mx, my);
  const start = rim(from, mx, my);
  const angle = (Math.atan2(end.y - my, end.x - mx) * 180) / Math.PI;
  // beside the middle of the curve, on its outer side
  const age = svg("text", { class: "age", x: (mx * 2 + from.x + to.x) / 4 + nx * 20, y: (my * 2 + from.y + to.y) / 4 + ny * 11 }, "");
  age.dataset.since = wait.since_ms;
  return [
    svg("path", { class: `edge${kind}`, d: `M${start.x} ${start.y}Q${mx} ${my} ${end.x} ${end.y}` }),
    svg("path", { class: `tip${kind}`, d: "M0 0L-9 -4.5L-9 4.5z", transform: `translate(${end.x} ${end.y}) rotate(${angle})` }),
    age,
  ];
}

/** Where the line from a node towards a point leaves the node's outline. */
function rim(node, x, y) {
  const [dx, dy] = [x - node.x, y - node.y];
  const scale = Math.min((node.half + 3) / Math.abs(dx || 1e-9), 17 / Math.abs(dy || 1e-9));
  return { x: node.x + dx * scale, y: node.y + dy * scale };
}
