/* The chart of `wherry bench`: a bar a lane, and a mark where the limit is. */
#include "measure.h"

enum { LEFT = 150, WIDTH = 480, ROW = 34, TOP = 46, BAR = 20, RIGHT = 130 };

static double longest(const wh_measurement *measurement) {
    double most = 1;
    for (size_t i = 0; i < measurement->count; i++) {
        double rate = wh_measured_rate(measurement, measurement->rows + i);
        double limit = measurement->rows[i].limit ? measurement->rows[i].limit->rate : 0;
        most = rate > most ? rate : most;
        most = limit > most ? limit : most;
    }
    return most;
}

static void draw_row(const wh_measurement *measurement, const wh_measured *row, double most, int top, FILE *out) {
    double rate = wh_measured_rate(measurement, row);
    int width = (int)(WIDTH * rate / most);
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 8, top + 15, row->name);
    if (rate <= 0) {
        fprintf(out, "<text x=\"%d\" y=\"%d\" fill=\"#888\">does not work here</text>\n", LEFT, top + 15);
        return;
    }
    fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n", LEFT, top, width, BAR,
            row->used ? "#1b6ca8" : "#8fb8d6");
    if (row->limit && row->limit->rate > 0) {
        int at = LEFT + (int)(WIDTH * row->limit->rate / most);
        fprintf(out, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#c0392b\" stroke-width=\"2\"/>\n", at,
                top - 4, at, top + BAR + 4);
    }
    fprintf(out, "<text x=\"%d\" y=\"%d\">%.2f GB/s</text>\n", LEFT + WIDTH + 10, top + 15, rate * 1e-9);
}

bool wh_measurement_draw(const wh_measurement *measurement, FILE *out) {
    int height = TOP + (int)measurement->count * ROW + 12;
    double most = longest(measurement);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"12\" y=\"22\" font-size=\"15\">Lanes; red: the machine's limit; dark: would be used</text>\n",
            LEFT + WIDTH + RIGHT, height);
    for (size_t i = 0; i < measurement->count; i++) {
        draw_row(measurement, measurement->rows + i, most, TOP + (int)i * ROW, out);
    }
    fputs("</svg>\n", out);
    return !ferror(out);
}
