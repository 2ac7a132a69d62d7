// Words and numbers as they are shown. What somebody wrote is only ever put into text nodes, and characters that would
// hide, move or turn round other text are written out.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udc7f]/g;
const BREAKS = /[\n\t]/g;
const NAMES = { 0x1b: "ESC", 0x7f: "DEL", 0x0d: "CR", 0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x202e: "RLO", 0x202d: "LRO", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0x200e: "LRM", 0x200f: "RLM", 0x200b: "ZWSP", 0xfeff: "BOM", 0xad: "SHY" };

function nameOf(mark) {
  const number = mark.codePointAt(0);
  return NAMES[number] ?? "U+" + number.toString(16).toUpperCase().padStart(4, "0");
}

/** Put somebody's text into an element, as text. On one line, unless `lines`. */
export function say(element, text, lines = false) {
  text = lines ? text : text.replace(BREAKS, " ");
  if (text.search(HIDDEN) < 0) { // not `test`, which would begin the next search where this one ended
    element.textContent = text;
    return element;
  }
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > at) parts.push(document.createTextNode(text.slice(at, match.index)));
    const mark = document.createElement("span");
    mark.className = "ctl";
    mark.textContent = nameOf(match[0]);
    parts.push(mark);
    at = match.index + match[0].length;
  }
  parts.push(document.createTextNode(text.slice(at)));
  element.replaceChildren(...parts);
  return element;
}

/** The same as plain text, where there can be no elements: in labels and in drawings. */
export function plain(text) {
  return text.replace(BREAKS, " ").replace(HIDDEN, (mark) => `‹${nameOf(mark)}›`);
}

let ahead = 0; // the room's clock before the browser's, in milliseconds

/** The room's time. */
export const now = () => Date.now() + ahead;

export function setNow(ms) {
  ahead = ms - Date.now();
}

const two = (n) => String(n).padStart(2, "0");

/** The time of a day, with milliseconds. */
export function clock(ms, withMs = true) {
  const d = new Date(ms);
  const s = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return withMs ? `${s}.${String(d.getMilliseconds()).padStart(3, "0").slice(0, 1)}` : s;
}

export function dayAndClock(ms) {
  const d = new Date(ms);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${clock(ms, false)}`;
}

/** A moment that is not far away, or is. */
export const soon = (ms) => (Math.abs(ms - now()) > 43200000 ? dayAndClock(ms) : clock(ms, false));

/** When a message that is delayed may be claimed. */
export const dueWords = ({ due_ms, deliveries }) => `${deliveries ? "next try" : "due"} ${soon(due_ms)}`;

/** How long something lasts or is ago, in the largest unit that fits. */
export function span(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s === 0) return "0 s";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return s < 10 ? `${s.toFixed(1)} s` : `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s < 600 ? ` ${Math.floor(s % 60)} s` : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d`;
}

/** A name cut in its middle: how names begin is often the same, how they end is not. */
export function shortened(text, most) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const end = Math.max(1, Math.floor((most - 1) / 2));
  return `${letters.slice(0, Math.max(1, most - 1 - end)).join("")}…${letters.slice(-end).join("")}`;
}

export function rate(perS) {
  return perS >= 100 ? String(Math.round(perS)) : perS >= 10 ? perS.toFixed(0) : perS.toFixed(1);
}

export function count(n) {
  return n.toLocaleString("en-US").replaceAll(",", "\u202f");
}

/** A mailbox of a session has a long name: its last part is what people know. */
export function channelName(channel) {
  return channel.startsWith("session:") ? channel.slice(channel.indexOf("/") + 1) : channel;
}
