//! Closed sets of named things, of which tables are made.

/// Declares a closed set of named things: the enum, `ALL`, `name` and `from_name`, written once.
macro_rules! named {
    (
        $(#[$about:meta])* $set:ident;
        $( $(#[$doc:meta])* $variant:ident = $name:literal, )+
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $set { $( $(#[$doc])* $variant, )+ }

        impl $set {
            /// All of them, in the order in which a table shows them.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )+ ];

            /// The kebab-case name, which is also the word used in a test's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )+ }
            }

            /// Finds one by its [`name`](Self::name).
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == name)
            }
        }

        impl std::fmt::Display for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use named;
