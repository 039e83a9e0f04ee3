// Updates the page after each write to the records; without this script, readers can reload.
"use strict";

const SHORTEST = 1500; // milliseconds between two loads
const content = document.getElementById("content");
const live = document.getElementById("live");
let loading = false;
let wanted = false;

async function load() {
  if (loading) { wanted = true; return; }
  loading = true;
  wanted = false;
  try {
    const answer = await fetch(location.href, { cache: "no-store", redirect: "error" });
    const found = new DOMParser().parseFromString(await answer.text(), "text/html");
    const next = found.getElementById("content");
    if (next) {
      content.replaceChildren(...next.childNodes);
      live.textContent = "live, as of " + new Date().toLocaleTimeString("en-GB");
    }
  } catch {
    live.textContent = "not live: the server does not answer";
  }
  setTimeout(() => { loading = false; if (wanted) load(); }, SHORTEST);
}

if (content && "live" in content.dataset) {
  const changes = new EventSource("/changes");
  // Start from the page's own stamp, so that no later write is missed.
  let known = content.dataset.stamp;
  changes.addEventListener("stamp", (event) => {
    if (known !== event.data) { load(); }
    known = event.data;
  });
  changes.onopen = () => { live.textContent = "live"; };
  changes.onerror = () => { live.textContent = "not live: the server does not answer"; };
}

const verify = document.getElementById("verify");
if (verify) {
  verify.addEventListener("submit", () => {
    verify.querySelector("button").disabled = true;
    verify.querySelector(".waiting").hidden = false;
  });
}
