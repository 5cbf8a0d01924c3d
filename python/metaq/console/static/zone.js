// The server renders times in the reader's zone, also on the first page after the sign-in.
const base = document.documentElement.dataset.base;
document.cookie = `metaq-utc-offset=${-new Date().getTimezoneOffset()}; path=${base || "/"}; samesite=lax; max-age=31536000`;
