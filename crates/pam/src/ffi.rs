//! Linux-PAM's C interface, loaded at run time.
//!
//! Invariant: a transaction lives no longer than the library it came from, and the password it answers with lives in
//! memory that does not move.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use crate::PamError;

/// The library's name with the version of its interface, as Debian's libpam0g and all others install it.
const NAMES: [&CStr; 2] = [c"libpam.so.0", c"libpam.so"];

const PAM_SUCCESS: c_int = 0;
const PAM_BUF_ERR: c_int = 5;
const PAM_CONV_ERR: c_int = 19;
/// PAM_PERM_DENIED, PAM_AUTH_ERR, PAM_CRED_INSUFFICIENT, PAM_USER_UNKNOWN, PAM_MAXTRIES, PAM_NEW_AUTHTOK_REQD,
/// PAM_ACCT_EXPIRED: answers about the user.
const REFUSALS: [c_int; 7] = [6, 7, 8, 10, 11, 12, 13];
const PAM_RHOST: c_int = 4;
const PAM_PROMPT_ECHO_OFF: c_int = 1;
const PAM_ERROR_MSG: c_int = 3;
const PAM_TEXT_INFO: c_int = 4;
/// The most messages in one conversation (`PAM_MAX_NUM_MSG`).
const MAX_MESSAGES: usize = 32;

#[repr(C)]
struct Message {
    style: c_int,
    text: *const c_char,
}

#[repr(C)]
struct Response {
    text: *mut c_char,
    code: c_int,
}

type Converse = unsafe extern "C" fn(c_int, *mut *const Message, *mut *mut Response, *mut c_void) -> c_int;

#[repr(C)]
struct Conversation {
    converse: Converse,
    data: *mut c_void,
}

/// `pam_handle_t`, of which nothing is known here.
#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

type Start =
    unsafe extern "C" fn(*const c_char, *const c_char, *const Conversation, *mut *mut Handle) -> c_int;
type SetItem = unsafe extern "C" fn(*mut Handle, c_int, *const c_void) -> c_int;
type Act = unsafe extern "C" fn(*mut Handle, c_int) -> c_int;
type Explain = unsafe extern "C" fn(*mut Handle, c_int) -> *const c_char;

/// The functions that are called. The library stays loaded until the process ends: modules may have left threads and
/// handlers behind.
pub(crate) struct Library {
    start: Start,
    set_item: SetItem,
    authenticate: Act,
    account: Act,
    explain: Explain,
    end: Act,
}

/// What `dlerror` says of the last failure.
fn loader_error() -> String {
    // SAFETY: no arguments; the process has one thread here.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, so a C string that is good until the next call of the loader.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: `library` is a handle of `dlopen` that is never closed, `name` is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(loader_error()) } else { Ok(found) }
}

impl Library {
    pub(crate) fn load() -> Result<Self, String> {
        let mut error = String::new();
        for name in NAMES {
            // SAFETY: a C string; what the library's initialisers do is the system's business, as with any library.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            if library.is_null() {
                error = loader_error();
            } else {
                return Self::of(library);
            }
        }
        Err(error)
    }

    fn of(library: *mut c_void) -> Result<Self, String> {
        let start = symbol(library, c"pam_start")?;
        let set_item = symbol(library, c"pam_set_item")?;
        let authenticate = symbol(library, c"pam_authenticate")?;
        let account = symbol(library, c"pam_acct_mgmt")?;
        let explain = symbol(library, c"pam_strerror")?;
        let end = symbol(library, c"pam_end")?;
        Ok(Self {
            // SAFETY: the type is that of `pam_start` in <security/pam_appl.h>.
            start: unsafe { std::mem::transmute::<*mut c_void, Start>(start) },
            // SAFETY: likewise.
            set_item: unsafe { std::mem::transmute::<*mut c_void, SetItem>(set_item) },
            // SAFETY: likewise.
            authenticate: unsafe { std::mem::transmute::<*mut c_void, Act>(authenticate) },
            // SAFETY: likewise.
            account: unsafe { std::mem::transmute::<*mut c_void, Act>(account) },
            // SAFETY: likewise.
            explain: unsafe { std::mem::transmute::<*mut c_void, Explain>(explain) },
            // SAFETY: likewise.
            end: unsafe { std::mem::transmute::<*mut c_void, Act>(end) },
        })
    }

    /// Begins a transaction that answers every question for a secret with `password`.
    pub(crate) fn start(
        &self,
        service: &CStr,
        user: &CStr,
        password: CString,
    ) -> Result<Transaction<'_>, PamError> {
        let password = Box::new(password);
        let data = ptr::from_ref::<CString>(&password).cast_mut().cast::<c_void>();
        let conversation = Box::new(Conversation { converse, data });
        let mut handle = ptr::null_mut();
        // SAFETY: C strings, a conversation that outlives the handle (it is in a box that the transaction keeps), and a
        // place for the handle.
        let code = unsafe {
            (self.start)(service.as_ptr(), user.as_ptr(), &raw const *conversation, &raw mut handle)
        };
        let transaction = Transaction {
            library: self,
            handle,
            last: code,
            _conversation: conversation,
            _password: password,
        };
        transaction.judged("pam_start", code)?;
        Ok(transaction)
    }
}

/// One exchange with the modules; dropping it ends it.
pub(crate) struct Transaction<'a> {
    library: &'a Library,
    handle: *mut Handle,
    last: c_int,
    _conversation: Box<Conversation>,
    _password: Box<CString>,
}

impl Transaction<'_> {
    fn judged(&self, step: &'static str, code: c_int) -> Result<(), PamError> {
        if code == PAM_SUCCESS {
            return Ok(());
        }
        // SAFETY: Linux-PAM takes any handle here, and does not look at it.
        let text = unsafe { (self.library.explain)(self.handle, code) };
        let text = if text.is_null() {
            format!("error {code}")
        } else {
            // SAFETY: not null, so one of the library's own C strings.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        if REFUSALS.contains(&code) {
            Err(PamError::Refused(text))
        } else {
            Err(PamError::Failed { step, text })
        }
    }

    pub(crate) fn set_remote_host(&mut self, host: &CStr) -> Result<(), PamError> {
        // SAFETY: the handle is one that was started, and the string is copied.
        self.last = unsafe { (self.library.set_item)(self.handle, PAM_RHOST, host.as_ptr().cast()) };
        self.judged("pam_set_item", self.last)
    }

    pub(crate) fn authenticate(&mut self) -> Result<(), PamError> {
        // SAFETY: the handle is one that was started.
        self.last = unsafe { (self.library.authenticate)(self.handle, 0) };
        self.judged("pam_authenticate", self.last)
    }

    pub(crate) fn account(&mut self) -> Result<(), PamError> {
        // SAFETY: the handle is one that was started.
        self.last = unsafe { (self.library.account)(self.handle, 0) };
        self.judged("pam_acct_mgmt", self.last)
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is one that was started, and is not used again. What this says changes nothing.
            let _ = unsafe { (self.library.end)(self.handle, self.last) };
        }
    }
}

/// Answers the modules: the password to what is not to be echoed, nothing to texts. They free what they are given.
///
/// # Safety
/// As the library calls it: `messages` points to `count` pointers to messages, `answers` to a place for the answers,
/// `data` to a `CString`.
unsafe extern "C" fn converse(
    count: c_int,
    messages: *mut *const Message,
    answers: *mut *mut Response,
    data: *mut c_void,
) -> c_int {
    let count = match usize::try_from(count) {
        Ok(count @ 1..=MAX_MESSAGES) if !messages.is_null() && !answers.is_null() && !data.is_null() => count,
        _ => return PAM_CONV_ERR,
    };
    // SAFETY: `data` is what `Library::start` gave: a `CString` in a box that outlives the transaction.
    let password = unsafe { &*data.cast::<CString>() };
    // SAFETY: sizes that do not overflow; the memory is zeroed, which is a valid `Response`.
    let given = unsafe { libc::calloc(count, size_of::<Response>()) }.cast::<Response>();
    if given.is_null() {
        return PAM_BUF_ERR;
    }
    for index in 0..count {
        // SAFETY: the library gives an array of `count` pointers (Linux-PAM's reading of the interface).
        let place = unsafe { messages.add(index) };
        // SAFETY: an element of that array.
        let message = unsafe { *place };
        // SAFETY: not null as the library promises; `as_ref` looks once more.
        let style = unsafe { message.as_ref() }.map_or(0, |message| message.style);
        let text = match style {
            // SAFETY: a C string; the copy is the library's to free.
            PAM_PROMPT_ECHO_OFF => unsafe { libc::strdup(password.as_ptr()) },
            PAM_ERROR_MSG | PAM_TEXT_INFO => continue,
            // What is asked in the clear nobody is there to answer.
            _ => {
                // SAFETY: it has `count` elements of which the first `index` may hold text; nobody else has it.
                unsafe { forget(given, index) };
                return PAM_CONV_ERR;
            }
        };
        // SAFETY: `index` is below `count`, the number of elements.
        let place = unsafe { given.add(index) };
        // SAFETY: it points into memory of ours.
        unsafe { (*place).text = text };
    }
    // SAFETY: a place for the pointer, as the library promises.
    unsafe { *answers = given };
    PAM_SUCCESS
}

/// Frees answers that are not given.
///
/// # Safety
/// `given` came from `calloc`, and its first `filled` elements hold texts of `strdup`, or null.
unsafe fn forget(given: *mut Response, filled: usize) {
    for index in 0..filled {
        // SAFETY: within the array.
        let answer = unsafe { given.add(index) };
        // SAFETY: an element of the array, which is zeroed or filled.
        let text = unsafe { (*answer).text };
        // SAFETY: from `strdup`, or null, which `free` takes.
        unsafe { libc::free(text.cast()) };
    }
    // SAFETY: from `calloc`.
    unsafe { libc::free(given.cast()) };
}
