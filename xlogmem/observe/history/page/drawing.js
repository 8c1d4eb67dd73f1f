// The picture: a part of the time, of which each pixel is drawn once, however many events are in it.

const LEFT = 110;                           // of the names
const ROW = 26;
const COLOURS = ["#3b6fd4", "#d9822b", "#2f9e6e", "#b5489b", "#c9b021", "#4fa8c5", "#8d6e63", "#7b61c9", "#8a949e"];
const FADED = .18;
const LONGEST_NAME = 80;
const GAP = 22;                             // between the bytes and the blocks
const MANY = 60;                            // waits in the picture: of more, arrows are drawn for blocks that are pointed at

function bytes_text(bytes) {
    const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    for (; bytes >= 1024 && unit < units.length - 1; ++unit) bytes /= 1024;
    return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes).toLocaleString("en")} ${units[unit]}`;
}

function time_text(ns) {
    const [unit, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([unit]) => Math.abs(ns) >= unit) ?? [1, "ns"];
    return `${Number((ns / unit).toPrecision(5))} ${name}`;
}

function shortened(name) { return name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME)}…` : name || '""'; }

function counted(number, name) {
    return `${number.toLocaleString("en")} ${name}${number === 1 ? "" : name.endsWith("h") ? "es" : "s"}`;
}

class Drawing {
    constructor(model) {
        this.model = model;
        this.events = model.events;
        [this.axis, this.lanes, this.memory] = ["axis", "lanes", "memory"].map((id) => document.getElementById(id));
        this.streams = document.getElementById("streams");
        this.lanes.style.height = `${model.rows.length * ROW}px`;
        this.measure();
        this.show_only(null);
        this.chosen = null;                 // a block
        this.pointed = new Set();           // blocks under the pointer
        this.show_all();
    }

    show_all() { this.show(-this.model.end * .01, this.model.end * 1.02); }

    show(begin, end) {
        const middle = (begin + end) / 2;
        const length = Math.min(Math.max(end - begin, 20), this.model.end * 1.1);
        this.begin = Math.min(Math.max(middle - length / 2, -this.model.end * .05), this.model.end * 1.05 - length);
        this.end = this.begin + length;
    }

    // The browser lays the page out anew each time it is measured: once for each picture.
    measure() {
        this.width = Math.max(this.axis.clientWidth - LEFT, 50);
        const height = this.memory.clientHeight, bytes = Math.max(70, (height - GAP) * .35);
        this.areas = {bytes: {top: 12, height: bytes - 12},
                      blocks: {top: bytes + GAP, height: Math.max(height - bytes - GAP - 2, 20)}};
    }

    get scale() { return this.width / (this.end - this.begin); }
    x(time) { return LEFT + (time - this.begin) * this.scale; }
    time(x) { return this.begin + (x - LEFT) / this.scale; }

    draw() {
        this.measure();
        const style = getComputedStyle(document.documentElement);
        const names = ["text", "faint", "line", "lane", "free", "wait", "long", "mark", "chosen", "adopted", "back"];
        const colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
        this.colour = (name) => colours[name];
        this.draw_axis(this.prepared(this.axis, this.axis.clientHeight));
        const lanes = this.prepared(this.lanes, this.model.rows.length * ROW);
        this.model.rows.forEach((lane, row) => this.draw_lane(lanes, lane, row));
        this.draw_arrows(lanes);
        const memory = this.prepared(this.memory, this.memory.clientHeight);
        this.draw_bytes(memory);
        this.draw_blocks(memory);
    }

    prepared(canvas, height) {
        const ratio = devicePixelRatio, wide = canvas.clientWidth;
        if (canvas.width !== Math.round(wide * ratio)) canvas.width = Math.round(wide * ratio);
        if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
        const context = canvas.getContext("2d");
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        context.clearRect(0, 0, wide, height);
        context.font = "11px system-ui, sans-serif";
        context.textBaseline = "middle";
        return context;
    }

    label(context, text, y, colour = "text") {
        context.fillStyle = this.colour(colour);
        context.fillText(text, 2, y, LEFT - 8);
    }

    draw_axis(context) {
        const wanted = (this.end - this.begin) / Math.max(this.width / 130, 1), power = 10 ** Math.floor(Math.log10(wanted));
        const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= wanted);
        context.fillStyle = this.colour("faint");
        for (let time = Math.ceil(this.begin / step) * step; time < this.end; time += step) {
            context.fillRect(this.x(time), 14, 1, 6);
            context.fillText(time_text(time), this.x(time) + 3, 8);
        }
    }

    // Everything but what this function of a label, a stream and a block is true for fades; null: nothing does.
    show_only(filter) {
        const {events, model} = this, fits = (event) => filter(events.label(event), events.stream(event), events.block(event));
        this.filter = filter;
        this.found = filter && new Map(model.rows.map((lane) => [lane, lane.bars.filter((bar) => model.launch(bar).some(fits))]));
        this.found_blocks = filter ? model.begins.filter(fits) : new Uint32Array();
    }

    shown(label, stream, block) { return !this.filter || this.filter(label, stream, block); }

    // ---- streams
    draw_lane(context, lane, row) {
        const top = row * ROW;
        if (top + ROW < this.streams.scrollTop || top > this.streams.scrollTop + this.streams.clientHeight) return;
        context.fillStyle = this.colour("lane");
        context.fillRect(LEFT, top + 2, this.width, ROW - 4);
        this.label(context, this.model.lane_name(lane), top + ROW / 2);
        this.draw_points(context, lane.marks, top + ROW - 7, 4, this.colour("mark"));
        context.globalAlpha = this.filter ? FADED : 1;
        this.draw_bars(context, lane, lane.bars, top + 5);
        context.globalAlpha = 1;
        if (this.filter) this.draw_bars(context, lane, this.found.get(lane), top + 5);
        this.draw_points(context, lane.warnings, top + 2, ROW - 4, this.colour("long"), 2);
    }

    draw_points(context, chosen, top, height, colour, wide = 1) {
        const events = this.events;
        context.fillStyle = colour;
        for (let i = events.first_at(chosen, this.begin); i < chosen.length;) {
            const x = Math.floor(this.x(events.times[chosen[i]]));
            if (x > LEFT + this.width) break;
            context.fillRect(x, top, wide, height);
            i = Math.max(i + 1, events.first_at(chosen, this.time(x + 1)));
        }
    }

    draw_bars(context, lane, chosen, top) {
        const {events} = this;
        let drawn = -1;                     // pixels up to here are
        for (let i = events.first_at(chosen, this.begin); i < chosen.length; ++i) {
            const event = chosen[i], until = events.times[event];
            if (until - lane.longest > this.end) break;
            const left = Math.max(Math.floor(this.x(events.begin(event))), LEFT);
            const right = Math.max(Math.min(Math.ceil(this.x(until)), LEFT + this.width), left + 2);
            if (right <= drawn) continue;
            context.fillStyle = COLOURS[this.model.history_of_bytes.band(events.label(event))];
            context.fillRect(left, top, right - left, ROW - 13);
            drawn = right;
            i = Math.max(i, events.first_at(chosen, this.time(drawn)) - 1);
        }
    }

    // True if the arrows of all waits in the picture would hide each other.
    get are_many() {
        const seen = (lane) => this.events.first_at(lane.waits, this.end) - this.events.first_at(lane.waits, this.begin);
        return this.model.rows.reduce((sum, lane) => sum + seen(lane), 0) > MANY;
    }

    // True if the wait is for a block that is chosen or pointed at.
    is_meant(wait) {
        const {events} = this;
        return wait.needs.some((need) => this.pointed.has(events.block(need)) || events.block(need) === this.chosen);
    }

    draw_arrows(context) {
        const {events, model, are_many} = this, rows = new Map(model.rows.map((lane, row) => [lane, row]));
        context.lineWidth = 1.2;
        this.arrows = 0;
        const draw = (wait, whole) => {
            if (wait.source === NO_EVENT) return;
            const source = model.lane(events.runtime(wait.source), events.stream(wait.source));
            const row = rows.get(model.lane(events.runtime(wait.event), events.stream(wait.event)));
            this.draw_arrow(context, this.x(events.times[wait.source]), rows.get(source) * ROW + ROW / 2,
                            this.x(events.times[wait.event]), row * ROW + ROW / 2, wait, whole);
            this.arrows += whole;
        };
        for (const lane of rows.keys()) {
            for (let i = events.first_at(lane.waits, this.begin); i < lane.waits.length;) {
                const wait = model.wait_of.get(lane.waits[i]), x = this.x(events.times[wait.event]);
                if (x > LEFT + this.width + 200) break;
                i = Math.max(i + 1, events.first_at(lane.waits, this.time(Math.floor(x) + 1)));
                draw(wait, !are_many);
            }
        }
        if (!are_many || (this.chosen === null && !this.pointed.size)) return;
        for (const wait of model.wait_of.values()) {
            const time = events.times[wait.event];
            if (time >= this.begin && time <= this.end && this.is_meant(wait)) draw(wait, true);
        }
    }

    draw_arrow(context, from, top, to, bottom, wait, whole) {
        const {events} = this, lit = [wait.event, ...wait.needs].some((event) => this.shown(
            events.label(event), events.stream(event), events.block(event)));
        context.globalAlpha = lit ? 1 : FADED;
        context.strokeStyle = context.fillStyle = this.colour(wait.excess ? "long" : "wait");
        if (whole) {
            context.setLineDash(wait.excess ? [4, 3] : []);
            context.beginPath();
            context.moveTo(Math.max(from, LEFT), top);
            const bend = Math.min(Math.max((to - from) / 2, 6), 40);
            context.bezierCurveTo(from + bend, top, to - bend, bottom, to, bottom);
            context.stroke();
            context.setLineDash([]);
        }
        context.beginPath();
        context.moveTo(to + 1, bottom);
        context.lineTo(to - 5, bottom - 3.5);
        context.lineTo(to - 5, bottom + 3.5);
        context.fill();
        context.globalAlpha = 1;
    }

    // ---- memory
    draw_bytes(context) {
        const {top, height} = this.areas.bytes, memory = this.model.history_of_bytes, bottom = top + height;
        const adopted = this.model.adopted_bytes, width = BANDS + 1;
        const unit = height / Math.max(memory.peak, adopted.peak, 1);
        this.label(context, "live bytes", top + 4);
        this.label(context, `peak ${bytes_text(memory.peak)}`, top + 20, "faint");
        if (adopted.peak) this.label(context, `adopted ${bytes_text(adopted.peak)}`, top + 36, "adopted");
        context.fillStyle = this.colour("line");
        context.fillRect(LEFT, bottom, this.width, 1);
        for (let x = LEFT; x < LEFT + this.width; ++x) {
            if (this.time(x) > this.model.end) break;
            const change = this.change_at(memory, x);
            if (change < 0) continue;
            let y = bottom;
            for (let band = 0; band < width; ++band) {
                const tall = memory.by_band[change * width + band] * unit;
                if (tall <= 0) continue;
                context.globalAlpha = band < BANDS && !this.shown(memory.bands[band], -1, -1) ? .2 : .85;
                context.fillStyle = COLOURS[band];
                context.fillRect(x, y - tall, 1, tall);
                y -= tall;
            }
        }
        context.globalAlpha = 1;
        this.draw_scale(context, Math.max(memory.peak, adopted.peak), bottom, unit);
        this.draw_adopted(context, bottom, unit);
    }

    // Lines at two to four round numbers of bytes below the largest.
    draw_scale(context, most, bottom, unit) {
        this.ticks = [];
        for (let step = 2 ** Math.max(Math.ceil(Math.log2(most / 4)), 0), bytes = step; bytes < most; bytes += step) this.ticks.push(bytes);
        for (const bytes of this.ticks) {
            const y = bottom - bytes * unit;
            context.fillStyle = this.colour("faint");
            context.globalAlpha = .35;
            context.fillRect(LEFT, y, this.width, 1);
            context.globalAlpha = 1;
            context.strokeStyle = this.colour("back");      // around the letters, which are over the bytes
            context.lineWidth = 3;
            context.strokeText(bytes_text(bytes), LEFT + 3, y - 6);
            context.fillStyle = this.colour("text");
            context.fillText(bytes_text(bytes), LEFT + 3, y - 6);
        }
    }

    // Memory of other libraries: a line, in front of what the runtimes have allocated.
    draw_adopted(context, bottom, unit) {
        const adopted = this.model.adopted_bytes;
        context.fillStyle = this.colour("adopted");
        for (let x = LEFT; adopted.peak && x < LEFT + this.width && this.time(x) <= this.model.end; ++x) {
            const change = this.change_at(adopted, x);
            const bytes = change < 0 ? 0 : adopted.totals[change];
            if (bytes) context.fillRect(x, bottom - Math.max(bytes * unit, 2), 1, 2);
        }
    }

    // Of those in a column of the picture, the one after which there is most; else the last before it, -1 for none.
    change_at(memory, x) {
        const first = this.events.first_at(memory.changes, this.time(x));
        const next = this.events.first_at(memory.changes, this.time(x + 1));
        return next > first ? memory.largest_in(first, next) : first - 1;
    }

    // Left, top, width and height of a block.
    place_of(block) {
        const {events, model} = this, {top, height} = this.areas.blocks, begun = model.begins[block];
        const unit = height / Math.max(model.addresses.total, 1);
        const left = Math.max(this.x(events.times[begun]), LEFT), right = Math.min(this.x(model.end_of(block)), LEFT + this.width);
        const tall = Math.max(events.size(begun) * unit - .5, 1);
        return [left, top + height - model.addresses.offset(events.address(begun)) * unit - tall, Math.max(right - left, 1), tall];
    }

    draw_blocks(context) {
        const {events, model} = this, {top, height} = this.areas.blocks;
        this.label(context, "blocks", top + 6);
        this.label(context, "by address", top + 22, "faint");
        this.label(context, bytes_text(model.addresses.total), top + 38, "faint");
        context.fillStyle = this.colour("free");
        context.fillRect(LEFT, top, this.width, height);
        const fits = (event) => this.shown(events.label(event), events.stream(event), events.block(event));
        context.globalAlpha = this.filter ? FADED : 1;
        this.draw_each_block(context, () => true);
        context.globalAlpha = 1;
        if (this.filter) this.draw_each_block(context, fits);
        const chosen = this.chosen === null ? -1 : model.begins.findIndex((event) => events.block(event) === this.chosen);
        if (chosen >= 0) this.frame(context, ...this.place_of(chosen));
    }

    draw_each_block(context, fits) {
        const {events, model} = this, drawn = new Set();       // pixels of those that are narrower than one
        for (let block = 0; block < model.begins.length; ++block) {
            const begun = model.begins[block];
            if (events.times[begun] > this.end) break;
            if (model.end_of(block) < this.begin || !fits(begun)) continue;
            const [left, up, wide, tall] = this.place_of(block);
            if (wide < 1.5) {
                const pixel = Math.floor(left) * 65536 + Math.floor(up);
                if (drawn.has(pixel)) continue;
                drawn.add(pixel);
            }
            context.fillStyle = COLOURS[model.history_of_bytes.band(events.label(begun))];
            context.fillRect(left, up, wide, tall);
        }
    }

    frame(context, left, top, wide, tall) {
        context.strokeStyle = this.colour("chosen");
        context.lineWidth = 2;
        context.strokeRect(left - 1, top - 1, wide + 2, tall + 2);
    }
}
