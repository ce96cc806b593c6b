// Updates a page while a job runs, loads rows after the page has loaded, and shows tooltips of charts.
(() => {
  "use strict";
  const pulse = document.getElementById("pulse");
  const source = document.body.dataset.live;
  let stream = null;
  let seen = null;
  let busy = false;
  let again = false;

  function say(state, text) {
    pulse.dataset.state = state;
    if (pulse.textContent !== text) pulse.textContent = text;
  }

  // ---- updates ------------------------------------------------------------------------------------------------

  async function refresh() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) {
        document.getElementById("main").replaceWith(page.getElementById("main"));
        return;
      }
      renew(page);
    } catch {
      say("lost", "not connected");
    } finally {
      busy = false;
      setTimeout(() => {
        if (again) {
          again = false;
          refresh();
        }
      }, 1000);
    }
  }

  function renew(page) {
    const names = (root) => [...root.querySelectorAll("[data-part]")].map((one) => one.dataset.part).join();
    if (names(document) !== names(page)) {
      replace(document.getElementById("main"), page.getElementById("main"));
      return;
    }
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
      if (fresh && !fresh.isEqualNode(part)) replace(part, fresh);
    }
    tick();
  }

  // Keep what the reader has opened, focused or scrolled.
  function replace(old, fresh) {
    const open = [...old.querySelectorAll("details[open]")].map((one) => one.id);
    const moved = [...old.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    const focus = old.contains(document.activeElement) ? [...old.querySelectorAll("a, button, input, [tabindex]")] : [];
    const place = focus.indexOf(document.activeElement);
    old.replaceWith(fresh);
    for (const id of open) if (id) document.getElementById(id)?.setAttribute("open", "");
    fresh.querySelectorAll(".scroll").forEach((one, number) => { one.scrollLeft = moved[number] || 0; });
    if (place >= 0) fresh.querySelectorAll("a, button, input, [tabindex]")[place]?.focus({ preventScroll: true });
    load(fresh);
  }

  function listen() {
    if (!source || stream) return;
    stream = new EventSource(source);
    stream.addEventListener("news", (event) => {
      say("live", "live");
      if (seen !== null && seen !== event.data) refresh();
      seen = event.data;
    });
    stream.addEventListener("gone", () => { say("lost", "gone"); refresh(); });
    stream.addEventListener("trouble", () => say("lost", "store does not answer"));
    stream.onerror = () => {
      say("lost", "not connected");
      if (stream.readyState === EventSource.CLOSED) {
        stream = null;
        setTimeout(listen, 10000);
      }
    };
  }

  // A browser limits connections per server: hidden pages close theirs.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      stream?.close();
      stream = null;
    } else {
      listen();
    }
  });

  // ---- ages -------------------------------------------------------------------------------------

  function length(seconds) {
    const parts = [];
    for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
      const count = Math.floor(seconds / size);
      seconds -= count * size;
      if (count || parts.length) parts.push(count ? `${count} ${unit}` : "");
    }
    return parts.slice(0, 2).filter(Boolean).join(" ");
  }

  function tick() {
    const now = Date.now() / 1000;
    for (const one of document.querySelectorAll("time[data-since]")) {
      const passed = Math.floor(now - Number(one.dataset.since) / 1e6);
      one.textContent = passed < 1 ? "just now" : `${length(passed)} ago`;
    }
  }

  // ---- rows ------------------------------------------------------------------------------------------------

  async function fill(target, address) {
    try {
      const answer = await fetch(address, { cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      target.replaceChildren(...page.body.childNodes);
    } catch {
      target.textContent = "The dashboard does not answer.";
    }
    target.dataset.state = "done";
  }

  function load(root) {
    for (const one of root.querySelectorAll("div[data-load]")) fill(one, one.dataset.load);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.load");
    if (!button) return;
    const target = document.getElementById(button.dataset.into);
    target.textContent = "reading …";
    fill(target, button.dataset.load);
  });

  // ---- tooltips -----------------------------------------------------------------------------------

  const tip = document.getElementById("tip");

  function textOf(target) {
    if (!(target instanceof Element)) return "";
    const named = target.closest("[data-tip]");
    if (named) return named.dataset.tip;
    const title = target.querySelector(":scope > title");
    if (!title) return target.dataset.told || "";
    // Suppress the browser's own tooltip, which would appear on top a second later.
    target.dataset.told = title.textContent;
    title.remove();
    return target.dataset.told;
  }

  function place(x, y) {
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
    const top = y + 16 + box.height > innerHeight ? y - 12 - box.height : y + 16;
    tip.style.setProperty("left", `${Math.max(4, left)}px`);
    tip.style.setProperty("top", `${Math.max(4, top)}px`);
  }

  function reveal(text, x, y) {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    place(x, y);
  }

  document.addEventListener("pointerover", (event) => reveal(textOf(event.target), event.clientX, event.clientY));
  document.addEventListener("pointermove", (event) => { if (!tip.hidden) place(event.clientX, event.clientY); });
  document.addEventListener("focusin", (event) => {
    if (!event.target.matches("[data-tip]")) return reveal("");
    const box = event.target.getBoundingClientRect();
    reveal(event.target.dataset.tip, box.left, box.bottom);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

  tick();
  setInterval(tick, 1000);
  load(document);
  listen();
})();
