// Of the modules as pages have them: their parts, joined, share one scope. See `make check-js`.
import js from "@eslint/js";
import globals from "globals";

export default [js.configs.recommended, { languageOptions: { globals: globals.browser } }];
