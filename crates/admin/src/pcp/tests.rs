use bytes::BytesMut;

use super::wire::{frame, take, texts};
use super::*;
use crate::testing::{FakeControl, FakeView};

fn pcp() -> (Pcp, Arc<FakeControl>) {
    let control = Arc::new(FakeControl::default());
    let view: Arc<dyn AdminView> = Arc::new(FakeView::new());
    let console = AdminConsole::new(Arc::clone(&view), Arc::clone(&control) as Arc<_>);
    let file = "# users\nboss:5f4dcc3b5aa765d61d8327deb882cf99\n";
    let secret_of: SecretOf = Arc::new(move |user| Ok(secret_in(file, user)));
    (Pcp::new(view, console, secret_of, || [1, 2, 3, 4]), control)
}

async fn ask(kind: u8, body: &[u8]) -> Frame {
    let request = Frame { kind, body: Bytes::copy_from_slice(body) };
    let answer = pcp().0.answer(&request, "boss").await.unwrap_or_else(|refused| refused.frame("ERROR"));
    take(&mut BytesMut::from(&answer[..])).unwrap().unwrap()
}

#[test]
fn frames_come_back_as_they_were_and_impossible_ones_are_refused() {
    let bytes = frame(b'I', &[b"1\0"]);
    let mut read = BytesMut::new();
    for byte in &bytes[..bytes.len() - 1] {
        read.extend_from_slice(&[*byte]);
        assert_eq!(take(&mut read).unwrap(), None);
    }
    read.extend_from_slice(&bytes[bytes.len() - 1..]);
    let taken = take(&mut read).unwrap().unwrap();
    assert_eq!((taken.kind, taken.number()), (b'I', Some(1)));
    for length in [0_u32, 3, 9000, u32::MAX] {
        let mut bad = BytesMut::from(&[&b"I"[..], &length.to_be_bytes()].concat()[..]);
        assert!(take(&mut bad).is_err(), "{length}");
    }
    assert_eq!(texts(b'c', ["a\0b"])[..], b"c\0\0\0\x07ab\0"[..]);
}

#[test]
fn the_answer_to_the_salt_is_checked() {
    let (pcp, _) = pcp();
    // md5(md5(md5("password") + "boss") + salt), as pcp_connect makes it.
    let secret = Md5Hash::from_password(b"boss", b"5f4dcc3b5aa765d61d8327deb882cf99");
    let response = String::from_utf8(secret.response([1, 2, 3, 4])).unwrap();
    let response = response.trim_end_matches('\0').strip_prefix("md5").unwrap().to_owned();
    let login =
        |user: &str, response: &str| Frame { kind: b'R', body: Bytes::from(format!("{user}\0{response}\0")) };
    assert_eq!(pcp.check(&login("boss", &response), [1, 2, 3, 4]), Ok("boss".to_owned()));
    assert!(pcp.check(&login("boss", &response), [1, 2, 3, 5]).is_err());
    assert!(pcp.check(&login("nobody", &response), [1, 2, 3, 4]).is_err());
    assert!(pcp.check(&login("", ""), [1, 2, 3, 4]).is_err());
}

#[tokio::test]
async fn what_is_asked_is_answered_and_what_fails_is_an_error() {
    let fields = |frame: &Frame| frame.fields().collect::<Vec<_>>();
    assert_eq!(fields(&ask(b'L', b"").await), ["CommandComplete", "2", ""]);
    let request = Frame { kind: b'I', body: Bytes::from_static(b"1\0") };
    let mut answer = BytesMut::from(&pcp().0.answer(&request, "boss").await.unwrap()[..]);
    let mut frames = Vec::new();
    while let Some(frame) = take(&mut answer).unwrap() {
        frames.push(fields(&frame).join(" "));
    }
    assert_eq!((frames[0].as_str(), frames[2].as_str()), ("ArraySize 1 ", "CommandComplete "));
    assert!(
        frames[1].starts_with("NodeInfo db1 5433 2 0 up 14316") && frames[1].contains(" 3 standby 4096 ")
    );
    for (kind, body) in [
        (b'I', &b"7\0"[..]),
        (b'I', b"x\0"),
        (b'C', b"7\0"),
        (b'P', b"99\0"),
        (b'W', b"0\0"),
        (b'T', b"q"),
        (b'?', b""),
    ] {
        let answer = ask(kind, body).await;
        assert_eq!(answer.kind, b'E', "{}", char::from(kind));
        assert!(fields(&answer)[0] == "SERROR" && fields(&answer)[1].len() > 5, "{answer:?}");
    }
    let (pcp, control) = pcp();
    let reload = Frame { kind: b'Z', body: Bytes::from_static(b"l") };
    assert_eq!(pcp.answer(&reload, "boss").await.unwrap()[0], b'z');
    assert_eq!(*control.done.lock(), ["reload"]);
}
