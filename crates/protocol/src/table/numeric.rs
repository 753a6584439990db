//! The binary form of `numeric` (PostgreSQL, `numeric_send` in `src/backend/utils/adt/numeric.c`):
//! digits in base 10000, the weight of the first, sign, and the scale for display.

const POSITIVE: u16 = 0x0000;
const NEGATIVE: u16 = 0x4000;
/// The longest number we encode, in characters; PostgreSQL itself allows more.
const MAX_LEN: usize = 1000;

/// Encodes a decimal number such as `-12.050`; `None` when it is none (or has an exponent).
pub(super) fn encode(text: &str) -> Option<Vec<u8>> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (NEGATIVE, rest),
        None => (POSITIVE, text),
    };
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let digits_only = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if text.len() > MAX_LEN
        || whole.len() + fraction.len() == 0
        || !digits_only(whole)
        || !digits_only(fraction)
    {
        return None;
    }
    let (digits, weight) = groups(whole, fraction)?;
    let sign = if digits.is_empty() { POSITIVE } else { sign };
    let mut out = Vec::with_capacity(8 + digits.len() * 2);
    out.extend(i16::try_from(digits.len()).ok()?.to_be_bytes());
    out.extend(weight.to_be_bytes());
    out.extend(sign.to_be_bytes());
    out.extend(u16::try_from(fraction.len()).ok()?.to_be_bytes());
    digits.iter().for_each(|digit| out.extend(digit.to_be_bytes()));
    Some(out)
}

/// The base-10000 digits without leading and trailing zeros, and the weight of the first.
fn groups(whole: &str, fraction: &str) -> Option<(Vec<i16>, i16)> {
    let lead = (4 - whole.len() % 4) % 4;
    let trail = (4 - fraction.len() % 4) % 4;
    let all = format!("{}{whole}{fraction}{}", "0".repeat(lead), "0".repeat(trail));
    let mut weight = i16::try_from((whole.len() + lead) / 4).ok()? - 1;
    let mut digits = Vec::with_capacity(all.len() / 4);
    for group in all.as_bytes().chunks(4) {
        digits.push(group.iter().fold(0i16, |value, byte| value * 10 + i16::from(byte - b'0')));
    }
    let zeros = digits.iter().take_while(|digit| **digit == 0).count();
    digits.drain(..zeros);
    weight -= i16::try_from(zeros).ok()?;
    while digits.last() == Some(&0) {
        digits.pop();
    }
    if digits.is_empty() {
        weight = 0;
    }
    Some((digits, weight))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(text: &str) -> Vec<i16> {
        encode(text).unwrap().chunks(2).map(|pair| i16::from_be_bytes([pair[0], pair[1]])).collect()
    }

    /// Reads the binary form back as `numeric_recv` and `numeric_out` would.
    fn decode(parts: &[i16]) -> String {
        let (weight, negative, scale) =
            (i32::from(parts[1]), parts[2] != 0, usize::try_from(parts[3]).unwrap());
        let digit =
            |at: i32| usize::try_from(at).ok().and_then(|at| parts[4..].get(at)).copied().unwrap_or(0);
        let whole: String =
            (0..=weight.max(0)).map(|at| format!("{:04}", digit(at - weight.min(0)))).collect();
        let whole = if weight < 0 { "0".to_owned() } else { whole };
        let fraction: String = (1..=10).map(|at| format!("{:04}", digit(weight + at))).collect();
        let whole = whole.trim_start_matches('0');
        let sign = if negative { "-" } else { "" };
        let whole = if whole.is_empty() { "0" } else { whole };
        match scale {
            0 => format!("{sign}{whole}"),
            _ => format!("{sign}{whole}.{}", &fraction[..scale]),
        }
    }

    #[test]
    fn known_forms() {
        // As PostgreSQL's numeric_send() shows them.
        assert_eq!(parts("0"), [0, 0, 0, 0]);
        assert_eq!(parts("-0.00"), [0, 0, 0, 2]);
        assert_eq!(parts("1"), [1, 0, 0, 0, 1]);
        assert_eq!(parts("0.333333"), [2, -1, 0, 6, 3333, 3300]);
        assert_eq!(parts("-12345.678"), [3, 1, 0x4000, 3, 1, 2345, 6780]);
        assert_eq!(parts("10000"), [1, 1, 0, 0, 1]);
        assert_eq!(parts("0.00001"), [1, -2, 0, 5, 1000]);
        for bad in ["", ".", "-", "1e3", "NaN", "1.2.3", " 1", "--1"] {
            assert_eq!(encode(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn reads_back(whole in "0|[1-9][0-9]{0,20}", fraction in "[0-9]{0,30}", negative: bool) {
            let nonzero = whole.bytes().chain(fraction.bytes()).any(|byte| byte != b'0');
            let sign = if negative && nonzero { "-" } else { "" };
            let text = if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") };
            prop_assert_eq!(decode(&parts(&text)), text);
        }
    }
}
