// The search: an index of names and sections (search-index.js, a script, so that it is there without a server too), and
// all words of the query in each result. Names come before headings, headings before text.
(() => {
  "use strict";
  const input = document.getElementById("tower-query");
  const list = document.getElementById("tower-results");
  const count = document.getElementById("tower-count");
  const entries = window.towerIndex.map((entry) => {
    const name = (entry.n || "").toLowerCase();
    return {
      ...entry,
      name,
      last: name.split(/::|\./).pop(),
      title: (entry.t || "").toLowerCase(),
      page: (entry.p || "").toLowerCase(),
      text: (entry.s || "").toLowerCase(),
    };
  });

  // How well an entry fits a word; 0: not at all.
  const fit = (entry, word) => {
    if (entry.name) {
      if (entry.last === word || entry.name === word) return 120;
      if (entry.last.startsWith(word)) return 60;
      if (entry.name.includes(word)) return 30;
      return entry.text.includes(word) ? 3 : 0;
    }
    let score = 0;
    if (entry.title.includes(word)) score += entry.title === word ? 50 : 28;
    if (entry.page.includes(word)) score += 8;
    const times = entry.text.split(word).length - 1;
    if (times) score += 2 + Math.min(times, 6);
    return score;
  };

  const search = (query) => {
    const words = query.toLowerCase().split(/[\s,()]+/).filter(Boolean);
    if (!words.length) return [];
    const found = [];
    entries.forEach((entry, place) => {
      let score = 0;
      for (const word of words) {
        const here = fit(entry, word);
        if (!here) return;
        score += here;
      }
      // Of names that fit alike, the shorter: tower::vmap before tower::dynamic::vmap.
      found.push({ entry, place, score: score - (entry.name ? entry.name.length / 10 : 0) });
    });
    return found.sort((a, b) => b.score - a.score || a.place - b.place).map((each) => each.entry);
  };

  // The text around the first word, with the words marked.
  const snippet = (entry, words) => {
    const text = entry.s || "";
    const lower = text.toLowerCase();
    const places = words.map((word) => lower.indexOf(word)).filter((place) => place >= 0);
    let begin = Math.max(0, (places.length ? Math.min(...places) : 0) - 70);
    if (begin) begin = text.indexOf(" ", begin) + 1;
    const part = text.slice(begin, begin + 200);
    const node = document.createElement("p");
    if (begin) node.append("… ");
    const pattern = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
    part.split(pattern ? new RegExp(`(${pattern})`, "gi") : /$^/).forEach((piece, k) => {
      if (k % 2) {
        const mark = document.createElement("mark");
        mark.textContent = piece;
        node.append(mark);
      } else {
        node.append(piece);
      }
    });
    if (begin + 200 < text.length) node.append(" …");
    return node;
  };

  const show = () => {
    const query = input.value.trim();
    const words = query.toLowerCase().split(/[\s,()]+/).filter(Boolean);
    const found = search(query);
    list.replaceChildren(
      ...found.slice(0, 60).map((entry) => {
        const item = document.createElement("li");
        const link = document.createElement("a");
        link.href = entry.u;
        const kind = document.createElement("span");
        kind.className = "kind";
        if (entry.n) {
          const code = document.createElement("code");
          code.textContent = entry.n;
          link.append(code);
          kind.textContent = entry.k;
        } else {
          link.textContent = entry.t;
          kind.textContent = entry.t === entry.p ? "" : entry.p;
        }
        item.append(link, " ", kind);
        if (entry.s) item.append(snippet(entry, words));
        return item;
      }),
    );
    count.textContent = !query ? "" : found.length > 60 ? `The first 60 of ${found.length} places` : `${found.length} place${found.length === 1 ? "" : "s"}`;
    document.title = query ? `${query} - Search` : "Search";
  };

  input.value = new URLSearchParams(location.search).get("q") || "";
  input.addEventListener("input", show);
  document.getElementById("tower-search").addEventListener("submit", (event) => {
    event.preventDefault();
    const url = new URL(location.href);
    url.searchParams.set("q", input.value);
    history.replaceState(null, "", url);
    show();
  });
  show();
})();
