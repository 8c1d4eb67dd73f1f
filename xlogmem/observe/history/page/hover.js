// What is under the pointer, beside it.

const MOST_BLOCKS = 6;                      // of a launch, by name

class Hover {
    constructor(picking) {
        this.picking = picking;
        this.drawing = picking.drawing;
        this.model = picking.model;
        this.events = picking.events;
        this.panel = document.getElementById("hover");
    }

    // At a place of a canvas, and of the window; null hides it.  Returns the blocks that it is about.
    show(place) {
        this.blocks = new Set();
        const text = place ? this.text(...place) : "";
        this.panel.hidden = !text;
        if (!text) return this.blocks;
        this.panel.textContent = text;
        const [, , , x, y] = place, {offsetWidth, offsetHeight} = this.panel;
        this.panel.style.left = `${Math.max(Math.min(x + 14, innerWidth - offsetWidth - 8), 0)}px`;
        this.panel.style.top = `${y + 18 + offsetHeight < innerHeight ? y + 18 : Math.max(y - offsetHeight - 10, 0)}px`;
        return this.blocks;
    }

    text(canvas, x, y) {
        const {drawing} = this, time = drawing.time(x);
        if (x < LEFT || time < 0 || time > this.model.end) return "";
        const event = canvas === drawing.lanes ? this.picking.in_lanes(x, y) : null;
        if (event !== null) return this.of_event(event);
        if (canvas === drawing.memory) {
            const {bytes, blocks} = drawing.areas;
            if (y >= bytes.top && y <= bytes.top + bytes.height) return this.of_bytes(x);
            const begun = y >= blocks.top ? this.picking.in_memory(x, y) : null;
            if (begun !== null) return this.of_block(begun);
        }
        return time_text(time);
    }

    of_event(event) {
        const {events, model} = this, at = time_text(events.times[event]), kind = events.kind(event);
        const stream = events.stream_name(events.stream(event)), block = events.block(event);
        if (model.wait_of.has(event)) {
            const {needs, excess} = model.wait_of.get(event);
            needs.forEach((need) => this.blocks.add(events.block(need)));
            const other = events.other(event) === NO_STREAM ? "everything" : events.stream_name(events.other(event));
            return [`${stream} waits for ${other}`, `at ${at}`,
                    events.size(event) ? `held up for ${time_text(events.size(event) - 1)}` : "",
                    excess ? `longer than needed: ${counted(excess, "later launch")}` : "",
                    ...this.named(needs, (need) => events.block_name(need))].filter(Boolean).join("\n");
        }
        if (kind === "use" || kind === "record use") {
            const uses = model.launch(event), open = events.open(event);
            uses.forEach((use) => this.blocks.add(events.block(use)));
            return [`a launch on ${stream}`, `at ${time_text(events.begin(event))}${open ? `, open for ${time_text(open)}` : ""}`,
                    ...this.named(uses, (use) => `${events.access(use)} ${events.block_name(use)}`)].join("\n");
        }
        if (block) this.blocks.add(block);
        return [`${kind} on ${stream}`, `at ${at}`, block ? events.block_name(event) : "",
                events.size(event) ? bytes_text(events.size(event)) : ""].filter(Boolean).join("\n");
    }

    named(chosen, name) {
        const lines = chosen.slice(0, MOST_BLOCKS).map((event) => shortened(name(event)));
        return chosen.length > MOST_BLOCKS ? [...lines, `and ${chosen.length - MOST_BLOCKS} more`] : lines;
    }

    // The bytes that are drawn in that column.
    of_bytes(x) {
        const {drawing, events} = this, memory = this.model.history_of_bytes, adopted = this.model.adopted_bytes;
        const at = (bytes) => { const change = drawing.change_at(bytes, x); return change < 0 ? 0 : bytes.totals[change]; };
        const change = drawing.change_at(memory, x), lines = [time_text(drawing.time(x)), `${bytes_text(at(memory))} live`];
        if (at(adopted)) lines.push(`${bytes_text(at(adopted))} adopted`);
        for (let band = 0; change >= 0 && band <= BANDS; ++band) {
            const bytes = memory.by_band[change * (BANDS + 1) + band];
            if (bytes > 0) lines.push(`${shortened(band < BANDS ? events.labels[memory.bands[band]] : "others")}: ${bytes_text(bytes)}`);
        }
        return lines.join("\n");
    }

    of_block(begun) {
        const {events, model} = this, block = model.begins.indexOf(begun), freed = model.ends[block] !== NO_EVENT;
        this.blocks.add(events.block(begun));
        return [shortened(events.block_name(begun)), `${bytes_text(events.size(begun))} at 0x${events.address(begun).toString(16)}`,
                `from ${time_text(events.times[begun])} ${freed ? `to ${time_text(model.end_of(block))}` : "to the end"}`,
                events.place(begun)].filter(Boolean).join("\n");
    }
}
