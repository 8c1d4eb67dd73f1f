// Events as they were recorded: 64 bytes each, which stay as they are (docs/history.md has the layout).

const NO_STREAM = 0xffffffff;
const TICKS_OF_A_STEP = 64;                 // of `other` in a use, which is how long its window was open

class Events {
    constructor(facts, buffer) {
        this.facts = facts;
        this.kind_of = Object.fromEntries(facts.kinds.map((name, code) => [name, code]));
        this.count = buffer.byteLength / 64;
        this.bytes = new Uint8Array(buffer);
        this.halves = new Uint16Array(buffer);
        this.words = new Uint32Array(buffer);
        const [[first, began], [last, ended]] = facts.clock;
        this.rate = last > first ? (ended - began) / (last - first) : 1;
        this.times = this.read_times();
        this.labels = ["no tag", ...facts.tags];
        this.label_of_line = new Map();
        this.label_of_block = new Map();    // of those without a tag
    }

    // Nanoseconds since the first event.  Threads read the clock a little before they take a number: never backwards.
    read_times() {
        const times = new Float64Array(this.count);
        const begin = this.count ? this.wide(0, 2) : 0;
        let newest = 0;
        for (let event = 0; event < this.count; ++event) {
            newest = Math.max(newest, (this.wide(event, 2) - begin) * this.rate);
            times[event] = newest;
        }
        return times;
    }

    wide(event, word) {
        const at = event * 16 + word;
        return this.words[at] + this.words[at + 1] * 2 ** 32;
    }

    number(event) { return this.facts.dropped + event; }
    thread(event) { return this.words[event * 16 + 1]; }
    code(event) { return this.bytes[event * 64 + 16]; }
    kind(event) { return this.facts.kinds[this.code(event)] ?? `kind ${this.code(event)}`; }
    runtime(event) { return this.halves[event * 32 + 9] + (this.bytes[event * 64 + 17] >> 2) * 65536; }
    stream(event) { return this.words[event * 16 + 6]; }
    other(event) { return this.words[event * 16 + 7]; }
    block(event) { return this.wide(event, 8); }
    address(event) { return this.wide(event, 10); }
    size(event) { return this.wide(event, 12); }
    position(event) { return this.words[event * 16 + 14]; }
    is(event, kind) { return this.code(event) === this.kind_of[kind]; }

    access(event) {
        const names = this.is(event, "use") || this.is(event, "record use") ? this.facts.accesses : this.facts.needs;
        return names[this.bytes[event * 64 + 17] & 3];
    }

    // How long the window of a use was open on the host, in nanoseconds.
    open(event) { return this.is(event, "use") ? this.other(event) * TICKS_OF_A_STEP * this.rate : 0; }

    begin(event) { return this.times[event] - this.open(event); }

    tag(event) { return this.words[event * 16 + 5]; }

    // What a block is counted under: its tag, else the line where it was allocated, if that was recorded.
    label(event) { return this.tag(event) || (this.label_of_block.get(this.block(event)) ?? 0); }

    note_label(event) {
        const line = this.place(event);
        if (this.tag(event) || !line) return;
        if (!this.label_of_line.has(line)) this.label_of_line.set(line, this.labels.push(line) - 1);
        this.label_of_block.set(this.block(event), this.label_of_line.get(line));
    }

    block_name(event) {
        const name = `block ${this.block(event)}`;
        return this.tag(event) ? `${this.labels[this.tag(event)]} (${name})` : name;
    }

    stream_name(stream) { return stream === NO_STREAM ? "the host" : `stream ${stream}`; }

    // The line of the program, "" without one; and all lines that were recorded.
    place(event) { return this.frames(event)?.place ?? ""; }

    frames(event) {
        const begins = ["allocate", "adopt", "free failed", "out of memory"].includes(this.kind(event));
        return this.facts.wanted === "alloc" && !begins ? undefined : this.facts.places[this.words[event * 16 + 15]];
    }

    // The first event of `chosen` (numbers of events, rising) at this time or later.
    first_at(chosen, time) {
        let low = 0;
        for (let high = chosen.length; low < high;) {
            const middle = (low + high) >>> 1;
            if (this.times[chosen[middle]] < time) low = middle + 1;
            else high = middle;
        }
        return low;
    }
}

// What is in the page: base64 of gzip.
async function unpacked(text) {
    const packed = await fetch(`data:application/gzip;base64,${text}`);
    return new Response(packed.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}
