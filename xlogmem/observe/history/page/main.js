// The page: what its keys, wheel and clicks do.

class Page {
    constructor(facts, buffer) {
        this.events = new Events(facts, buffer);
        this.model = new Model(this.events);
        this.drawing = new Drawing(this.model);
        this.picking = new Picking(this.drawing);
        this.hover = new Hover(this.picking);
        this.story = new Story(this.model, (block) => this.choose(block), (event) => this.go_to(event));
        this.drawn = 0;                     // how many times
        this.write_texts();
        this.listen();
        this.story.show(null);
        this.draw();
    }

    write_texts() {
        const {facts} = this.events;
        document.querySelector("h1").textContent = facts.title;
        document.getElementById("note").textContent = "Times are the host's: a bar is a launch, for as long as its window "
            + "was open on the host; an arrow is a wait that was queued on the device, red and dashed where it is longer than needed. "
            + "When the device did the work was not recorded."
            + (facts.dropped ? ` The ${facts.dropped.toLocaleString("en")} oldest events are missing.` : "");
        const legend = document.getElementById("legend"), memory = this.model.history_of_bytes;
        memory.bands.forEach((label, band) => legend.append(this.legend_entry(label, COLOURS[band], memory.peaks.get(label))));
        if (memory.peaks.size > BANDS) legend.append(element("span", `grey: ${memory.peaks.size - BANDS} others`));
    }

    legend_entry(label, colour, peak) {
        const made = element("button"), square = element("i"), name = this.events.labels[label];
        square.style.background = colour;
        made.append(square, `${shortened(name)}, at most ${bytes_text(peak)}`);
        made.onclick = () => this.search(name);
        return made;
    }

    draw() {
        if (this.waiting) return;
        this.waiting = true;
        requestAnimationFrame(() => {
            this.waiting = false;
            this.drawing.draw();
            document.getElementById("range").textContent = this.range_text();
            ++this.drawn;
        });
    }

    // The margins are no part of the history.
    range_text() {
        const {begin, end, are_many} = this.drawing, all = this.model.end;
        const seen = Math.max(Math.min(end, all) - Math.max(begin, 0), 0);
        return (are_many ? "many waits: point at a block, or zoom in, to see arrows · " : "")
            + (seen < all ? `${time_text(seen)} of ${time_text(all)}` : time_text(all));
    }

    listen() {
        const {drawing} = this;
        document.getElementById("help").onclick = () => this.show_keys(document.getElementById("keys").hidden);
        addEventListener("resize", () => this.draw());
        drawing.streams.addEventListener("scroll", () => this.draw());
        document.getElementById("fit").onclick = () => this.fit();
        const search = document.getElementById("search");
        search.oninput = () => this.search(search.value);
        search.onkeydown = (key) => { if (key.key === "Enter") this.next_found(); };
        addEventListener("keydown", (key) => { if (key.target !== search) this.key(key); });
        for (const canvas of [drawing.axis, drawing.lanes, drawing.memory]) {
            canvas.addEventListener("wheel", (wheel) => this.wheel(wheel), {passive: false});
            canvas.addEventListener("pointerdown", (down) => this.press(canvas, down));
            canvas.addEventListener("dblclick", () => this.fit());
            canvas.addEventListener("pointermove", (move) => this.point(canvas, move));
            canvas.addEventListener("pointerleave", () => this.point(null));
        }
    }

    show_keys(shown) {
        document.getElementById("keys").hidden = !shown;
        document.getElementById("help").setAttribute("aria-expanded", String(shown));
        this.draw();                        // there is less room, or more
    }

    // Say what is under the pointer, once for each picture; null: nothing is.
    point(canvas, move) {
        const waits = this.pointed !== undefined;
        this.pointed = canvas && move.buttons === 0 ? [canvas, move.offsetX, move.offsetY, move.clientX, move.clientY] : null;
        if (!waits) requestAnimationFrame(() => {
            const before = this.drawing.pointed;
            this.drawing.pointed = this.hover.show(this.pointed);
            this.pointed = undefined;
            if (before.size !== this.drawing.pointed.size || [...before].some((block) => !this.drawing.pointed.has(block)))
                this.draw();
        });
    }

    fit() {
        this.drawing.show_all();
        this.draw();
    }

    key(key) {
        const {drawing} = this, length = drawing.end - drawing.begin, middle = LEFT + drawing.width / 2;
        const steps = {ArrowLeft: -length / 4, ArrowRight: length / 4};
        if (key.key in steps) this.move(steps[key.key]);
        else if (key.key === "+" || key.key === "=") this.zoom(middle, .5);
        else if (key.key === "-") this.zoom(middle, 2);
        else if (key.key === "0") this.fit();
        else if (key.key === "?" || key.key === "Escape") this.show_keys(key.key === "?" && document.getElementById("keys").hidden);
        else if (key.key === "/") document.getElementById("search").focus();
        else return;
        key.preventDefault();
    }

    wheel(wheel) {
        wheel.preventDefault();
        if (wheel.shiftKey || Math.abs(wheel.deltaX) > Math.abs(wheel.deltaY))
            this.move((wheel.deltaX || wheel.deltaY) / this.drawing.scale);
        else this.zoom(wheel.offsetX, Math.exp(Math.min(Math.max(wheel.deltaY, -300), 300) / 300));
    }

    move(time) {
        this.drawing.show(this.drawing.begin + time, this.drawing.end + time);
        this.draw();
    }

    // What is at x stays there.
    zoom(x, factor) {
        const {drawing} = this, fixed = drawing.time(x);
        drawing.show(fixed - (fixed - drawing.begin) * factor, fixed + (drawing.end - fixed) * factor);
        this.draw();
    }

    // A click, or the beginning of a drag.
    press(canvas, down) {
        const {drawing} = this, begin = drawing.begin, end = drawing.end, scale = drawing.scale;
        let moved = false;
        canvas.setPointerCapture(down.pointerId);
        canvas.onpointermove = (move) => {
            moved ||= Math.abs(move.clientX - down.clientX) > 3;
            if (!moved) return;
            const time = (down.clientX - move.clientX) / scale;
            drawing.show(begin + time, end + time);
            this.draw();
        };
        canvas.onpointerup = (up) => {
            canvas.onpointermove = canvas.onpointerup = null;
            if (!moved) this.click(canvas, up.offsetX, up.offsetY);
        };
    }

    click(canvas, x, y) {
        let event = null;
        if (canvas === this.drawing.lanes) event = this.picking.in_lanes(x, y);
        if (canvas === this.drawing.memory) event = this.picking.in_memory(x, y);
        this.show(event);
    }

    show(event) {
        this.drawing.chosen = event === null ? null : this.events.block(event) || null;
        this.story.show(event);
        this.draw();
    }

    go_to(event) {
        this.show(event);
        this.reveal(this.events.times[event]);
    }

    choose(block) {
        const first = this.model.begins.find((event) => this.events.block(event) === block) ?? this.model.story(block)[0];
        this.drawing.chosen = block;
        this.story.show_block(block);       // its first event may be a launch, where it began before the recording
        this.reveal(this.events.times[first]);
    }

    reveal(time) {
        const {drawing} = this, length = drawing.end - drawing.begin;
        if (time < drawing.begin || time > drawing.end) drawing.show(time - length / 2, time + length / 2);
        this.draw();
    }

    // Everything but what was looked for fades.
    search(text) {
        const wanted = text.trim().toLowerCase(), number = wanted.match(/^(stream|block)\s+(\d+)$/);
        const labels = new Set(this.events.labels.flatMap((name, label) => name.toLowerCase().includes(wanted) ? [label] : []));
        document.getElementById("search").value = text;
        let filter = (label) => labels.has(label);
        if (number?.[1] === "stream") filter = (label, stream) => stream === Number(number[2]);
        else if (number) filter = (label, stream, block) => block === Number(number[2]);
        this.drawing.show_only(wanted ? filter : null);
        this.at = -1;
        document.getElementById("found").textContent = wanted ? counted(this.drawing.found_blocks.length, "block") : "";
        this.draw();
    }

    next_found() {
        const found = this.drawing.found_blocks;
        if (!found.length) return;
        this.at = (this.at + 1) % found.length;
        this.go_to(found[this.at]);
    }
}

(async () => {
    const text = document.getElementById("events"), facts = JSON.parse(document.getElementById("facts").textContent);
    try {
        const buffer = await unpacked(text.textContent.trim());
        text.remove();
        window.timeline = new Page(facts, buffer);
    } catch (error) {
        document.getElementById("note").textContent = `This page cannot be shown: ${error}`;
        throw error;
    }
})();
