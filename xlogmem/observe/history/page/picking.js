// What is at a place of the picture.

const NEAR = 4;                             // pixels

class Picking {
    constructor(drawing) {
        this.drawing = drawing;
        this.model = drawing.model;
        this.events = drawing.events;
    }

    // An event in the lanes, null beside them.
    in_lanes(x, y) {
        const lane = this.model.rows[Math.floor(y / ROW)];
        if (!lane || x < LEFT) return null;
        return this.nearest(lane.warnings, x) ?? this.nearest(lane.waits, x) ?? this.bar(lane, x) ?? this.nearest(lane.marks, x);
    }

    nearest(chosen, x) {
        const {events, drawing} = this;
        let best = null, distance = NEAR;
        for (let i = events.first_at(chosen, drawing.time(x - NEAR)); i < chosen.length; ++i) {
            const away = drawing.x(events.times[chosen[i]]) - x;
            if (away > NEAR) break;
            if (Math.abs(away) < distance) [best, distance] = [chosen[i], Math.abs(away)];
        }
        return best;
    }

    bar(lane, x) {
        const {events, drawing} = this, time = drawing.time(x), slack = 2 / drawing.scale;
        for (let i = events.first_at(lane.bars, time - slack); i < lane.bars.length; ++i) {
            if (events.times[lane.bars[i]] - lane.longest > time + slack) break;
            if (events.begin(lane.bars[i]) <= time + slack) return lane.bars[i];
        }
        return null;
    }

    // The event with which the block began that is at this place.
    in_memory(x, y) {
        const time = this.drawing.time(x);
        let best = null, distance = NEAR;
        for (let block = 0; block < this.model.begins.length; ++block) {
            const begun = this.model.begins[block];
            if (this.events.times[begun] > time + NEAR / this.drawing.scale) break;
            if (this.model.end_of(block) < time - NEAR / this.drawing.scale) continue;
            const [left, top, wide, tall] = this.drawing.place_of(block);
            const away = Math.max(left - x, x - left - wide, top - y, y - top - tall, 0);
            if (away < distance) [best, distance] = [begun, away];
        }
        return best;
    }
}
