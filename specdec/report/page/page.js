"use strict";
// Without this script every text and every call is shown, one below the other, and linked.
// With it they are tabs within tabs: left and right choose a call, up and down a text.

class Tabs {
  constructor(list, tabs, orientation) {
    this.tabs = tabs;
    this.panels = tabs.map((tab) => document.getElementById(tab.hash.slice(1)));
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-orientation", orientation);
    tabs.forEach((tab, index) => {
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", this.panels[index].id);
      tab.addEventListener("click", (event) => {
        event.preventDefault();
        this.choose(index);
        tab.focus();
      });
      this.panels[index].setAttribute("role", "tabpanel");
    });
    this.choose(0);
  }

  choose(index) {
    this.chosen = Math.max(0, Math.min(index, this.tabs.length - 1));
    this.tabs.forEach((tab, other) => {
      const chosen = other === this.chosen;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      this.panels[other].hidden = !chosen;
    });
  }

  get tab() {
    return this.tabs[this.chosen];
  }
}

function tabsOf(list, selector, orientation) {
  for (const item of list.querySelectorAll("li")) item.setAttribute("role", "presentation");
  return new Tabs(list, [...list.querySelectorAll(selector)], orientation);
}

function view(viewer) {
  const texts = tabsOf(viewer.querySelector(".texts ul"), "a", "vertical");
  viewer.querySelector(".texts ul").setAttribute("aria-label", "Texts");
  const calls = texts.panels.map((panel) => {
    const list = panel.querySelector(".calls");
    return list.querySelector(".call") ? tabsOf(list, ".call", "horizontal") : null;
  });
  const moves = {
    ArrowUp: [texts, -1],
    ArrowDown: [texts, 1],
    ArrowLeft: ["calls", -1],
    ArrowRight: ["calls", 1],
    Home: ["calls", -Infinity],
    End: ["calls", Infinity],
  };
  viewer.addEventListener("keydown", (event) => {
    const { altKey, ctrlKey, metaKey, shiftKey, key, target } = event;
    if (!(key in moves) || altKey || ctrlKey || metaKey || shiftKey) return;
    if (target.getAttribute("role") !== "tab") return;
    const [which, by] = moves[key];
    const moved = which === "calls" ? calls[texts.chosen] : which;
    if (!moved) return;
    event.preventDefault();
    moved.choose(moved.chosen + by);
    const inCalls = moved !== texts || target.classList.contains("call");
    const focused = inCalls && calls[texts.chosen] ? calls[texts.chosen] : texts;
    focused.tab.focus();
    if (moved === texts) texts.tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

for (const viewer of document.querySelectorAll(".viewer")) view(viewer);
