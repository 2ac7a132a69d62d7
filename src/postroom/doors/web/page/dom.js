// Making elements. Attributes and properties only: nothing here, or anywhere in the page, turns text into markup.
import { say } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";

/** An element: el("p.soft", {title: "…", onclick}, child, "text", …). */
export function el(what, props = null, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "said") say(element, value).classList.add("said");
    else if (name === "saidLines") say(element, value, true).classList.add("said");
    else if (name in element && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function icon(name) {
  return svg("svg", { "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));
}

export function lookChip(look) {
  return el(`span.chip.look-${look}`, null, icon(look), look);
}

/** Make a container's children fit a list, keeping those that are there: focus, scroll and open details survive. */
export function keyed(container, items, keyOf, make, update) {
  const known = container.keyed ?? (container.keyed = new Map());
  const seen = new Set();
  let place = container.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (seen.has(key)) continue;
    seen.add(key);
    let child = known.get(key);
    if (!child) known.set(key, (child = make(item)));
    update(child, item);
    if (child === place) place = place.nextSibling;
    else container.insertBefore(child, place);
  }
  for (const [key, child] of known) {
    if (seen.has(key)) continue;
    child.remove();
    known.delete(key);
  }
}

/** Set an element's text only when it is another: writing the same costs a layout. */
export function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setSaid(element, text) {
  if (element.saidText !== text) {
    element.saidText = text;
    say(element, text).classList.add("said");
  }
}

export const byId = (id) => document.getElementById(id);

export function nothing(name, title, more) {
  return el("div.void", null, icon(name), el("h2", null, title), el("p", null, more));
}
