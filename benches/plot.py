"""Bars in SVG, without a library: a group of bars for each row, a colour for each peer."""

import html

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 360, 60, 60, 50
COLOURS = {"direct": "#9aa0a6", "pgweir": "#1a73e8", "pgweir, 1 worker": "#8ab4f8", "PgBouncer": "#e8710a", "HAProxy": "#188038", "Pgpool-II": "#a142f4"}
OTHER = "#5f6368"


def bars(title, rows):
    """`rows`: (name, {peer: value or None}); the SVG's text."""
    peers = list(dict.fromkeys(peer for _, values in rows for peer in values))
    most = max((value for _, values in rows for value in values.values() if value), default=1)
    group = (WIDTH - LEFT - 20) / max(len(rows), 1)
    bar = group * 0.8 / max(len(peers), 1)
    height = HEIGHT - BOTTOM - TOP
    parts = [text(WIDTH / 2, 20, title, size=15)]
    for step in range(5):
        value, y = most * step / 4, HEIGHT - BOTTOM - height * step / 4
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - 20}" stroke="#dadce0"/>')
        parts.append(text(LEFT - 6, y + 4, f"{value:.0f}", anchor="end"))
    for number, (name, values) in enumerate(rows):
        start = LEFT + group * (number + 0.1)
        for place, peer in enumerate(peers):
            value = values.get(peer)
            if value is None:
                continue
            tall = height * value / most
            x, y = start + bar * place, HEIGHT - BOTTOM - tall
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar * 0.92:.1f}" height="{tall:.1f}" '
                         f'fill="{COLOURS.get(peer, OTHER)}"><title>{html.escape(peer)}: {value:.1f}</title></rect>')
            parts.append(text(x + bar / 2, y - 3, f"{value:.0f}", size=9))
        parts.append(text(start + group * 0.4, HEIGHT - BOTTOM + 18, name))
    for place, peer in enumerate(peers):
        x = LEFT + 145 * place
        parts.append(f'<rect x="{x}" y="{HEIGHT - 24}" width="12" height="12" fill="{COLOURS.get(peer, OTHER)}"/>')
        parts.append(text(x + 18, HEIGHT - 14, peer, anchor="start"))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">\n'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def text(x, y, words, anchor="middle", size=11):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{html.escape(words)}</text>'
