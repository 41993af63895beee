// Keeps the rows of the live page current: reads the events of its session while the page is visible, and says how old
// the rows are. It makes text only, never HTML. Until it runs, the page says that it does not update itself.
"use strict";

const byId = (id) => document.getElementById(id);
const live = byId("live");
const [head, body] = [live.querySelector("thead tr"), live.querySelector("tbody")];
const SILENCE = 2000 * Number(live.dataset.heartbeat); // milliseconds without a byte after which a connection is lost
const LONGEST_PAUSE = 30; // seconds
const LASTING = 30000; // a connection that lasted so many milliseconds was a good one
const MARKED = 3000; // milliseconds for which new and changed rows are marked
const SPEECH = 60000; // the least milliseconds between two announcements of new rows
const PATIENCE = 5000; // milliseconds without a current answer after which that is announced
// How many live pages of a browser have a connection at once. It opens six to a host, and its other pages need some.
const CONNECTIONS = 4;
const CROWDED = `${CONNECTIONS} other live pages of this browser are connected, and more would block its other pages. `
  + "Hide, pause or close one: this page waits for that.";
// Seconds until a refused query is repeated that may succeed later, by its status. A query that took too long is dear.
const SLOW = { 403: 30, 404: 30, 409: 30, 504: 120 };

let connection = null; // the AbortController of the open connection
let heard = 0; // when its last byte came; this and `due` are by the clock that cannot be set
let due = 0; // when to connect next
let failures = 0; // connections in a row that did not last
let isSlow = false; // the server has refused the query: only time helps, not a new connection
let isOver = false; // nothing helps but the user
let isPaused = false;
let isCurrent = false; // the server has confirmed the rows over the open connection
let doing = "Connecting.";
let version = live.dataset.version; // of the rows; an event brings them only if they have another one
// When each row was first seen, by its text. The rows of the page itself are not new.
let known = version ? new Map([...body.rows].map((row) => [JSON.stringify(texts(row)), -Infinity])) : null;
// When the rows came, and when they were confirmed, by the clock on the wall.
let asOf = live.dataset.status === "200" ? performance.timeOrigin : null;
let confirmed = asOf;
let spoken = 0;
let said = ""; // which state of the page was announced last; none while it is current
let staleSince = null; // since when the visible page is not current
let last = { wall: Date.now(), steady: performance.now() };

function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function cell(tag, text, isNumber) {
  const made = document.createElement(tag);
  if (tag === "th") made.scope = "col";
  if (isNumber) made.className = "number";
  if (text === null) {
    made.append(document.createElement("span"));
    made.firstChild.className = "null";
  }
  (made.firstChild ?? made).textContent = text ?? "null";
  return made;
}

function texts(row) {
  return [...row.cells].map((cell) => (cell.querySelector(".null") ? null : cell.textContent));
}

function replaceRows({ columns, rows }) {
  const now = performance.now();
  const seen = new Map();
  head.replaceChildren(...columns.map((column) => cell("th", column.name, column.number)));
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    const text = JSON.stringify(cells);
    const since = known ? known.get(text) ?? now : -Infinity;
    seen.set(text, since);
    if (now - since < MARKED) {
      row.className = "new";
      row.dataset.since = since;
      row.style.animationDelay = `${since - now}ms`;
    }
    row.append(...cells.map((text, index) => cell("td", text, columns[index].number)));
    return row;
  }));
  known = seen;
  asOf = Date.now();
}

function sentence(text) {
  return text && `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function take(block) {
  const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: ?(.*)/s)));
  if (!("data" in fields)) return null;
  const data = JSON.parse(fields.data);
  if (fields.event === "problem") return data;
  isCurrent = fields.event !== "away";
  doing = isCurrent ? "" : sentence(data.detail);
  if (!fields.event) {
    replaceRows(data);
    version = fields.id;
  }
  if (isCurrent) confirmed = Date.now();
  say("problem", "");
  show();
  return null;
}

// Only what the network does may fail. Any other error is a fault of this script, which `fail` shows.
async function orNull(promise) {
  try {
    return await promise;
  } catch {
    return null;
  }
}

async function read(reader, mine) {
  for (let rest = ""; ;) {
    const piece = await orNull(reader.read());
    if (!piece || piece.done || connection !== mine) return null;
    heard = performance.now();
    const blocks = (rest + piece.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const problem = take(block);
      if (problem) return problem;
    }
  }
}

// Does something while this page has one of the connections for live pages. Returns false if none is free.
async function withConnection(work) {
  // Browsers have locks only in secure contexts, and not where they may not store anything.
  const hasLocks = await orNull(navigator.locks?.query());
  if (!hasLocks) {
    await work();
    return true;
  }
  for (let number = 0; number < CONNECTIONS; number += 1) {
    const isFree = await navigator.locks.request(`scankv-live-${number}`, { ifAvailable: true }, async (lock) => {
      if (lock) await work();
      return lock !== null;
    });
    if (isFree) return true;
  }
  return false;
}

async function connect() {
  const mine = new AbortController();
  connection = mine;
  heard = performance.now();
  const isFree = await withConnection(() => connection === mine && readEvents(mine));
  if (isFree || connection !== mine) return;
  close();
  doing = CROWDED;
  show();
}

async function readEvents(mine) {
  const began = performance.now();
  heard = began;
  isSlow = false;
  let problem = null;
  const headers = version ? { "Last-Event-ID": version } : {};
  const options = { headers, signal: mine.signal, cache: "no-store", redirect: "error" };
  const answer = await orNull(fetch(live.dataset.events, options));
  if (answer?.ok) problem = await read(answer.body.pipeThrough(new TextDecoderStream()).getReader(), mine);
  else if (answer) problem = await orNull(answer.json()); // or the page of a proxy
  if (connection !== mine) return;
  close();
  failures = performance.now() - began > LASTING ? 0 : failures + 1;
  settle(problem);
}

function settle(problem) {
  const { status = 0, reason, detail = "", retry_after: least = 0 } = problem ?? {};
  const hasEnded = reason === "SESSION_ENDED";
  isSlow = status in SLOW;
  isOver = hasEnded || (status >= 400 && status < 500 && !isSlow && ![401, 429].includes(status));
  const pause = isSlow ? SLOW[status] : Math.min(LONGEST_PAUSE, 2 ** failures) * (0.5 + Math.random() / 2);
  due = performance.now() + 1000 * Math.max(pause, least);
  if (isOver) doing = hasEnded ? "" : "Change the query, or load the page again.";
  byId("login").hidden = !hasEnded;
  say("problem", hasEnded ? "Your session has ended: log in." : detail);
  show();
}

function close() {
  const mine = connection;
  connection = null;
  isCurrent = false;
  doing = "Reconnecting.";
  mine?.abort();
}

function ago(instant) {
  const seconds = Math.max(0, Math.round((Date.now() - instant) / 1000));
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

function clock(instant) {
  const [then, now] = [new Date(instant), new Date()];
  return then.toDateString() === now.toDateString() ? then.toLocaleTimeString("en-GB") : then.toLocaleString("en-GB");
}

function show() {
  const isStale = !isCurrent || performance.now() - heard > SILENCE;
  const time = clock(asOf);
  const wait = connection ? 0 : Math.ceil((due - performance.now()) / 1000);
  const next = isOver || isPaused || wait <= 0 ? doing : `Trying again in ${wait} s.`;
  live.classList.toggle("stale", isStale);
  say("stale", isPaused ? "Paused" : isStale ? "Not current" : "");
  const age = isStale ? `not confirmed for ${ago(confirmed)}. ${next}` : `confirmed ${ago(confirmed)} ago.`;
  say("age", asOf === null ? `No answer yet. ${next}` : `As of ${time}, ${age}`);
  byId("none").hidden = asOf === null || body.rows.length > 0;
  byId("pause").hidden = isOver;
  for (const row of body.querySelectorAll(".new")) {
    if (performance.now() - row.dataset.since > MARKED) row.classList.remove("new");
  }
  announce(isStale, time);
}

function announce(isStale, time) {
  staleSince = isStale && !document.hidden ? staleSince ?? performance.now() : null;
  const isLong = staleSince !== null && performance.now() - staleSince > PATIENCE;
  const state = isPaused ? "Paused" : isLong ? "Not current" : isStale ? said : "";
  if (state !== said) {
    say("spoken", state ? `${state}. ${doing}` : `Current again, as of ${time}`);
  } else if (!isStale && asOf > spoken && Date.now() - spoken > SPEECH) {
    say("spoken", `Updated at ${time}`);
  } else {
    return;
  }
  said = state;
  spoken = Date.now();
}

function pause() {
  isPaused = !isPaused;
  if (connection) close();
  doing = isPaused ? "" : "Connecting.";
  staleSince = null;
  say("pause", isPaused ? "Continue" : "Pause");
  hurry();
}

function fail(error) {
  console.error(error);
  clearInterval(timer);
  close();
  isOver = true;
  doing = "This page has failed: load it again.";
  live.classList.add("stale");
  say("stale", "Not current");
  say("age", doing);
}

function hurry() {
  if (!isSlow) due = 0;
  tick();
}

function tick() {
  try {
    advance();
  } catch (error) {
    fail(error);
  }
}

function advance() {
  const now = { wall: Date.now(), steady: performance.now() };
  const jump = now.wall - last.wall - (now.steady - last.steady);
  // A clock that was set back must not make rows younger.
  if (jump < -5000 && asOf !== null) [asOf, confirmed] = [asOf + jump, confirmed + jump];
  // A machine that has slept does not know that its connections are gone.
  const hasSlept = Math.abs(jump) > 5000 || now.steady - last.steady > 10000;
  last = now;
  if (connection && (hasSlept || document.hidden || now.steady - heard > SILENCE)) {
    close();
    due = 0;
  }
  if (!connection && !document.hidden && !isOver && !isPaused && now.steady >= due) connect().catch(fail);
  show();
}

byId("pause").addEventListener("click", pause);
// A hidden page leaves its connection to visible ones.
document.addEventListener("visibilitychange", hurry);
window.addEventListener("online", () => {
  if (connection) close(); // it is older than the network
  hurry();
});
const timer = setInterval(tick, 1000);
// A query that has failed while the page was made is not repeated at once.
if (live.dataset.status !== "200") settle({ status: Number(live.dataset.status), detail: byId("problem").textContent });
tick();
