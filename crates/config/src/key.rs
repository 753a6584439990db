//! The shape of a row in a table of keys, and the macro that makes a struct and its table from one list.
//!
//! A row is the only place where a key is declared: its field, type, limits, default, whether a reload
//! applies it, and what this version does with it. Parsing, SHOW CONFIG, the plan of a reload, the sample
//! file and the reference are made from the rows.

use std::fmt;
use std::path::Path;

use crate::error::Sink;
use crate::value::Limits;
use crate::yaml::Node;

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// With the next reload.
    Reload,
    /// With the next start; a reload that changes it names it and keeps the old value.
    Restart,
}

impl Effect {
    /// The word in SHOW CONFIG and the reference.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Restart => "restart",
        }
    }
}

/// What this version does with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// It is obeyed.
    Active,
    /// It is validated and has no effect yet; a value other than the default gets a warning.
    Reserved,
    /// Ignoring it would be unsafe and obeying it is not built: only the default is accepted.
    Unsupported,
}

impl Status {
    /// The word in the reference.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Reserved => "reserved",
            Self::Unsupported => "not supported",
        }
    }
}

/// Reads a value into its field; false when it was refused (and the sink knows why).
pub(crate) type Set<C> = fn(&mut C, &Limits, &Node, &mut Sink) -> bool;

/// One key: a row of a table. `C` is the struct that the table describes.
pub struct Key<C: 'static = crate::Config> {
    /// The name in the file and in SHOW CONFIG.
    pub name: &'static str,
    /// The heading in the sample and the reference.
    pub section: &'static str,
    /// The default as YAML; empty when the key is required.
    pub default: &'static str,
    /// When a change takes effect.
    pub effect: Effect,
    /// What this version does with it.
    pub status: Status,
    /// Unit and range.
    pub limits: Limits,
    pub(crate) doc: &'static str,
    pub(crate) expects: fn(&Limits) -> String,
    pub(crate) set: Set<C>,
    pub(crate) show: fn(&C, &Limits) -> String,
    pub(crate) same: fn(&C, &C) -> bool,
    pub(crate) copy: fn(&mut C, &C),
    pub(crate) anchor: fn(&mut C, &Path),
    pub(crate) masked: bool,
}

impl<C> Key<C> {
    /// What the key is for, in a sentence or two.
    #[must_use]
    pub fn description(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// What values it takes, with unit and range.
    #[must_use]
    pub fn kind(&self) -> String {
        (self.expects)(&self.limits)
    }

    /// Does it hold a secret, so that its value is never shown?
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.masked
    }

    /// Must it be given?
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.default.is_empty()
    }

    /// The value as YAML text; secrets masked.
    pub(crate) fn text(&self, of: &C) -> String {
        (self.show)(of, &self.limits)
    }
}

impl<C> fmt::Debug for Key<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("name", &self.name)
            .field("default", &self.default)
            .field("effect", &self.effect)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// Makes `pub struct $Struct` with one field per row (and the `extra` ones) and the table `$TABLE`.
///
/// A row: `/// description` `name: Type, limits, "default", Effect, Status;`
macro_rules! table {
    (
        $(#[$meta:meta])*
        pub struct $Struct:ident { $( $(#[$xmeta:meta])* $xvis:vis $xname:ident : $xty:ty = $xblank:expr; )* }
        $(#[$tmeta:meta])*
        pub static $TABLE:ident;
        $( section $section:literal { $(
            $(#[doc = $doc:literal])+
            $name:ident : $ty:ty, $limits:expr, $default:literal, $effect:ident, $status:ident;
        )* } )*
    ) => {
        $(#[$meta])*
        pub struct $Struct {
            $( $( $(#[doc = $doc])+ pub $name: $ty, )* )*
            $( $(#[$xmeta])* $xvis $xname: $xty, )*
        }

        impl $Struct {
            /// Every field empty: what defaults and the file are then read into.
            pub(crate) fn blank() -> Self {
                Self {
                    $( $( $name: <$ty as $crate::value::Value>::blank(), )* )*
                    $( $xname: $xblank, )*
                }
            }
        }

        $(#[$tmeta])*
        pub static $TABLE: &[$crate::key::Key<$Struct>] = &[ $( $( $crate::key::Key {
            name: stringify!($name),
            section: $section,
            default: $default,
            effect: $crate::key::Effect::$effect,
            status: $crate::key::Status::$status,
            limits: $limits,
            doc: concat!($($doc),+),
            expects: <$ty as $crate::value::Value>::expects,
            set: |of, limits, node, sink| match <$ty as $crate::value::Value>::read(limits, node, sink) {
                Some(value) => { of.$name = value; true }
                None => false,
            },
            show: |of, limits| $crate::value::Value::text(&of.$name, limits),
            same: |one, other| one.$name == other.$name,
            copy: |to, from| to.$name.clone_from(&from.$name),
            anchor: |of, directory| $crate::value::Value::anchor(&mut of.$name, directory),
            masked: <$ty as $crate::value::Value>::MASKED,
        }, )* )* ];
    };
}
pub(crate) use table;
