// What is shown, as a function of what is known. Owns the elements: makes, changes and removes them so that what did
// not change is not touched: focus, scroll and selected text stay. Data goes in as text and attribute values only.

const SVG = "http://www.w3.org/2000/svg";
const made = new WeakMap(); // element -> what it was made from

/** A description of an element. `key` tells siblings apart; `hook` {mount, update, unmount} takes over the inside. */
export function h(tag, props, ...children) {
  const { key, hook, ...rest } = props ?? {};
  return { tag, key, hook, props: rest, children: flat(children) };
}

function flat(children) {
  const out = [];
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    out.push(typeof child === "object" ? child : { text: String(child) });
  }
  return out;
}

/** Makes the inside of `parent` what `children` describe. */
export function patch(parent, ...children) {
  const focused = document.activeElement;
  inside(parent, flat(children));
  if (focused !== document.activeElement && focused?.isConnected && parent.contains(focused)) {
    focused.focus({ preventScroll: true });
  }
}

function inside(parent, wanted) {
  const names = naming(wanted);
  const keep = new Set(names);
  const had = new Map();
  for (const node of [...parent.childNodes]) {
    const name = made.get(node)?.name;
    if (name !== undefined && keep.has(name)) had.set(name, node);
    else remove(node);
  }
  let next = parent.firstChild;
  wanted.forEach((child, index) => {
    const name = names[index];
    let node = had.get(name);
    if (node === undefined) {
      node = create(child, parent);
      parent.insertBefore(node, next);
    } else if (node === next) {
      next = next.nextSibling;
    } else {
      parent.insertBefore(node, next);
    }
    update(node, child, name);
  });
}

function naming(children) {
  const times = new Map();
  return children.map((child) => {
    const name = child.tag === undefined ? "#" : `${child.tag} ${child.key ?? ""}`;
    const count = times.get(name) ?? 0;
    times.set(name, count + 1);
    return count ? `${name} ${count}` : name;
  });
}

function create(child, parent) {
  if (child.tag === undefined) return document.createTextNode(child.text);
  const drawn = child.tag === "svg" || (parent.namespaceURI === SVG && parent.tagName !== "foreignObject");
  return drawn ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
}

function update(node, child, name) {
  const before = made.get(node);
  made.set(node, { ...child, name });
  if (child.tag === undefined) {
    if (node.data !== child.text) node.data = child.text;
    return;
  }
  const old = before?.props ?? {};
  for (const prop of Object.keys(old)) if (!(prop in child.props)) set(node, prop, undefined);
  for (const [prop, value] of Object.entries(child.props)) {
    if (old[prop] !== value || prop === "style" || prop === "value") set(node, prop, value);
  }
  if (child.hook) {
    if (before === undefined) child.hook.mount(node);
    child.hook.update?.(node);
  } else {
    inside(node, child.children);
  }
}

function set(node, prop, value) {
  if (prop === "style") {
    for (const [name, text] of Object.entries(value ?? {})) {
      if (node.style.getPropertyValue(name) !== text) node.style.setProperty(name, text); // CSSOM: allowed by the CSP
    }
  } else if (prop.startsWith("on")) {
    node[prop] = value ?? null;
  } else if (prop === "value" || prop === "checked" || prop === "disabled" || prop === "open") {
    if (node[prop] !== value) node[prop] = value ?? false;
  } else if (value === undefined || value === null || value === false) {
    node.removeAttribute(prop);
  } else {
    node.setAttribute(prop, value === true ? "" : value);
  }
}

function remove(node) {
  const unmount = (each) => {
    made.get(each)?.hook?.unmount?.(each);
    each.childNodes.forEach(unmount);
  };
  unmount(node);
  node.remove();
}
